import numpy as np
from arc.engine.sampling.uniform import stream_key, uniforms
from hypothesis import given
from hypothesis import strategies as st


def uniform(seed: int, position: int) -> float:
    return float(uniforms(np.array([stream_key(seed)], np.uint64), np.array([position], np.uint64))[0])


def test_is_splitmix64():
    # The first outputs of the generator's published C code for the state 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    key = np.full(len(published), 1234567, np.uint64)
    drawn = uniforms(key, np.arange(len(published), dtype=np.uint64))
    assert drawn.tolist() == [(bits >> 11) * 2.0**-53 for bits in published]


@given(st.integers(), st.integers(0, 2**31))
def test_any_seed_gives_the_same_number_in_the_unit_interval(seed, position):
    assert 0.0 <= uniform(seed, position) == uniform(seed, position) < 1.0


def test_numbers_depend_on_seed_and_position_and_not_on_the_rows_beside():
    seeds, positions = np.meshgrid(np.arange(40), np.arange(50))
    keys = np.array([stream_key(int(s)) for s in seeds.ravel()], np.uint64)
    drawn = uniforms(keys, positions.ravel().astype(np.uint64))
    assert len(set(drawn.tolist())) == 2000
    assert drawn[777] == uniform(int(seeds.ravel()[777]), int(positions.ravel()[777]))


def test_neither_neighbouring_seeds_nor_positions_are_correlated():
    seeds = np.array([stream_key(s) for s in range(4000)], np.uint64)
    along_seeds = uniforms(seeds, np.zeros(4000, np.uint64))
    along_positions = uniforms(np.full(4000, stream_key(0), np.uint64), np.arange(4000, dtype=np.uint64))
    for drawn in (along_seeds, along_positions):
        counts = np.bincount((drawn * 20).astype(int), minlength=20)
        assert ((counts - 200) ** 2 / 200).sum() < 50  # 19 degrees of freedom
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.06
