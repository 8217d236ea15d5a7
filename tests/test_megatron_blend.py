"""The blends: which dataset, and which of its samples, comes next."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.megatron_rules import KINDS, blend_arrays, blended, exhausted, same, slow_blend

pytest_plugins = ("tests.megatron_fixtures",)

shared = settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def weight_lists(draw):
    """Weights of the kinds that meet each branch of the search: ties, near ties, and scales far apart."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.sampled_from([1, 2, 3, 7, 8, 9, 17, 63, 64, 65, 66, 100, 128, 130, 500]))
    kind = draw(st.sampled_from(sorted(KINDS)))
    return KINDS[kind](random, count)


@shared
@given(weights=weight_lists(), size=st.integers(0, 3000))
def test_a_blend_is_the_peers_bit_for_bit(helpers, peer, weights, size):
    same(blended(helpers, weights, size), blended(peer, weights, size))


@shared
@given(weights=weight_lists(), size=st.integers(1, 400))
def test_a_blend_follows_the_rule(helpers, weights, size):
    same(blended(helpers, weights, size), slow_blend(weights, size))


@shared
@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=150))
def test_an_exhaustive_blend_is_the_peers_bit_for_bit(helpers, peer, sizes):
    same(exhausted(helpers, sizes), exhausted(peer, sizes))


@pytest.mark.parametrize("seed", range(3))
def test_an_exhaustive_blend_of_a_thousand_datasets_is_the_peers(helpers, peer, seed):
    random = np.random.default_rng(seed)
    sizes = random.multinomial(40_000, random.dirichlet(np.ones(1000))) + 1
    same(exhausted(helpers, sizes), exhausted(peer, sizes))


@pytest.mark.parametrize("kind", KINDS)
def test_a_blend_of_thousands_of_datasets_is_the_peers(helpers, peer, kind):
    weights = KINDS[kind](np.random.default_rng(5), 5000)
    same(blended(helpers, weights, 12_000), blended(peer, weights, 12_000))


# More leaders than are near the line at once, so that they come and go; weights that make many do so at a time (nearly
# equal), lines that soon fail (a heavy head, a jump in the weights), and draws enough for many groups of steps.
CROWDS = {
    "dirichlet": lambda random, count: random.dirichlet(np.ones(count)),
    "nearly equal": lambda random, count: 1 + 1e-9 * random.random(count),
    "power law": lambda _random, count: (1.0 + np.arange(count)) ** -1.1,
    "a jump": lambda random, count: np.where(np.arange(count) < 600, 100, 1) * (1 + 0.01 * random.random(count)),
    "mostly zero": lambda random, count: np.where(random.random(count) < 0.4, 0, random.random(count)),
}


@pytest.mark.parametrize("count", [4500, 20_000])
@pytest.mark.parametrize("kind", CROWDS)
def test_a_crowd_that_comes_and_goes_is_drawn_as_the_peer_does(helpers, peer, kind, count):
    weights = CROWDS[kind](np.random.default_rng(11), count)
    weights /= weights.sum()
    same(blended(helpers, weights, 60_000), blended(peer, weights, 60_000))


@pytest.mark.parametrize("count", [16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 512, 513, 2048, 2049, 16_384, 16_385])
def test_just_so_many_leaders_as_a_way_of_searching_is_for_are_drawn_as_the_peer_does(helpers, peer, count):
    weights = np.random.default_rng(count).dirichlet(np.ones(count))
    same(blended(helpers, weights, 20_000), blended(peer, weights, 20_000))


@pytest.mark.parametrize("count", [2200, 8300])
def test_an_exhaustive_blend_of_a_crowd_follows_the_rule(helpers, count):
    """No two sizes are the same, so that each has a leader; with so many draws only some are looked at."""
    sizes = np.random.default_rng(3).permutation(np.arange(1, count + 1))
    index, sample = exhausted(helpers, sizes)
    counts = np.zeros(count, np.int64)
    for begin in range(0, len(index), 1 << 20):  # each dataset's samples in order; piece by piece, for memory's sake
        piece = slice(begin, begin + (1 << 20))
        order = np.argsort(index[piece], kind="stable")
        ordered = index[piece][order]
        rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
        np.testing.assert_array_equal(sample[piece][order], counts[ordered] + rank)
        counts += np.bincount(ordered, minlength=count)
    np.testing.assert_array_equal(counts, sizes)
    weights = sizes / sizes.sum()
    drawn, seen = np.zeros(count, np.int64), 0
    for begin in np.linspace(0, len(index) - 300, 25).astype(int):
        drawn += np.bincount(index[seen:begin], minlength=count)
        for i in range(begin, begin + 300):
            error = np.where(drawn < sizes, weights * max(i, 1.0) - drawn, -np.inf)
            assert index[i] == error.argmax()
            drawn[index[i]] += 1
        seen = begin + 300


@shared
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=100))
def test_draw_counts_equal_sizes_and_empty_datasets_contribute_nothing(helpers, sizes):
    """Case 79."""
    index, sample = exhausted(helpers, sizes)
    assert np.bincount(index, minlength=len(sizes)).tolist() == sizes
    same((index, sample), slow_blend(np.array(sizes) / max(sum(sizes), 1), sum(sizes), sizes))


@pytest.mark.parametrize(
    ("sizes", "index", "sample"),
    [
        ([3, 1, 2], [0, 2, 1, 0, 2, 0], [0, 0, 0, 1, 1, 2]),
        ([0, 3], [1, 1, 1], [0, 1, 2]),
        ([3, 0], [0, 0, 0], [0, 1, 2]),
        ([0, 0], [], []),
        ([0], [], []),
        ([0, 0, 5], [2, 2, 2, 2, 2], [0, 1, 2, 3, 4]),
    ],
)
def test_an_empty_dataset_never_keeps_an_exhaustive_blend_from_ending(helpers, sizes, index, sample):
    """Case 79."""
    begin = time.monotonic()
    got = exhausted(helpers, sizes)
    assert time.monotonic() - begin < 1
    assert [one.tolist() for one in got] == [index, sample]


@pytest.mark.parametrize("weights", [[1.0], [0.5, 0.5], [0.0], [33.0, 33.0, 33.99999]])
def test_a_blend_of_no_samples_is_empty(helpers, weights):
    index, sample = blended(helpers, weights, 0)
    assert (index.tolist(), sample.tolist()) == ([], [])


@pytest.mark.parametrize("total", [0.9999999, 1.0, 1.0000001])
def test_weights_that_do_not_quite_add_up_to_one_draw_as_many_samples_as_asked(helpers, total):
    weights = [0.3, 0.45, total - 0.75]
    index, _ = blended(helpers, weights, 1000)
    assert np.bincount(index, minlength=3).tolist() == [300, 450, 250]


def test_three_hundred_datasets_are_all_drawn_in_order(helpers):
    """Case 73."""
    index, sample = blended(helpers, np.ones(300) / 300, 600)
    assert index.tolist() == [*range(300), *range(300)]
    assert sample.tolist() == [0] * 300 + [1] * 300


def test_more_datasets_than_the_index_can_number_are_an_error(helpers):
    """Case 73."""
    with pytest.raises(ValueError, match="num_datasets is 40000"):
        blended(helpers, np.ones(40_000), 10)
    with pytest.raises(ValueError, match="num_datasets is 40000"):
        exhausted(helpers, np.ones(40_000, np.int64))
    with pytest.raises(TypeError, match="dataset_index has dtype uint8"):
        helpers.build_blending_indices(np.zeros(9, np.uint8), np.zeros(9, np.int64), np.ones(300), 300, 9, False)


def test_the_last_dataset_that_the_index_can_number_is_drawn(helpers):
    index, _ = blended(helpers, np.ones(32_768), 32_768)
    assert index[-1] == 32_767


@pytest.mark.parametrize(("size", "counts"), [(2, [1, 1]), (10, [1, 9]), (1000, [1, 999]), (2000, [2, 1998])])
def test_a_rare_dataset_is_drawn_as_often_as_megatron_does(helpers, size, counts):
    """Case 74."""
    index, _ = blended(helpers, [0.001, 0.999], size)
    assert np.bincount(index, minlength=2).tolist() == counts


def test_small_blends_come_out_in_the_known_order(helpers):
    """Case 74."""
    index, sample = blended(helpers, [0.5, 0.3, 0.2], 10)
    assert index.tolist() == [0, 1, 2, 0, 1, 0, 2, 0, 1, 0]
    assert sample.tolist() == [0, 0, 0, 1, 1, 2, 1, 3, 2, 4]
    index, _ = blended(helpers, [0.9, 0.1], 12)
    assert index.tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]


MEASURE = """
import resource, sys, time
import numpy as np
from nodecache import megatron

helpers = megatron.compile_helper()
size, weights = 1_000_000, 1 + 0.1 * np.random.default_rng(0).random(2000)
weights /= weights.sum()
index, sample = np.ones(size, np.int16), np.ones(size, np.int64)
helpers.build_blending_indices(index, sample, weights, 2000, 1000, False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
begin = time.perf_counter()
helpers.build_blending_indices(index, sample, weights, 2000, size, False)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
np.save(sys.argv[1], np.stack([index[:20_000], sample[:20_000]]))
"""


def test_many_datasets_are_blended_quickly_and_within_the_output(
    helpers, helpers_root, tmp_path, monkeypatch, record_property
):
    """Case 76."""
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path / "prefix.npy"], capture_output=True, text=True, timeout=60, check=True
    )
    seconds, kilobytes = (float(word) for word in done.stdout.split())
    record_property("seconds", seconds)
    record_property("kilobytes beside the output", kilobytes)
    weights = 1 + 0.1 * np.random.default_rng(0).random(2000)
    expected = slow_blend(weights / weights.sum(), 20_000)
    np.testing.assert_array_equal(np.load(tmp_path / "prefix.npy"), np.stack(expected))
    assert seconds < 10
    assert kilobytes < 512  # a second copy of either output would be 2000 or 8000


def read_only(size, dtype):
    array = np.zeros(size, dtype)
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("argument", ["dataset_index", "dataset_sample_index"])
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda size, _: np.zeros(size, np.uint8), TypeError),
        (lambda size, _: np.zeros(size, np.int32), TypeError),
        (lambda size, _: np.zeros(size, np.float64), TypeError),
        (lambda size, dtype: np.zeros(size, np.dtype(dtype).newbyteorder()), TypeError),
        (lambda size, _: [0] * size, TypeError),
        (read_only, ValueError),
        (lambda size, dtype: np.zeros(size - 1, dtype), ValueError),
        (lambda size, dtype: np.zeros((size, 1), dtype), ValueError),
        (lambda size, dtype: np.frombuffer(bytearray(size * 8 + 1), dtype, size, 1), ValueError),
    ],
)
def test_an_output_that_cannot_be_filled_in_place_is_refused_by_name(helpers, argument, make, error):
    """Case 86."""
    dtypes = {"dataset_index": np.int16, "dataset_sample_index": np.int64}
    arrays = {name: make(10, dtype) if name == argument else np.zeros(10, dtype) for name, dtype in dtypes.items()}
    with pytest.raises(error, match=f"^{argument} "):
        helpers.build_blending_indices(*arrays.values(), [0.5, 0.5], 2, 10, False)
    with pytest.raises(error, match=f"^{argument} "):
        helpers.build_exhaustive_blending_indices(*arrays.values(), [5, 5], 2)


def test_an_output_with_gaps_is_filled_and_its_gaps_are_left(helpers):
    """Case 86."""
    index, sample = np.full(20, -7, np.int16), np.full(30, -7, np.int64)
    helpers.build_blending_indices(index[::2], sample[::-3], [0.5, 0.3, 0.2], 3, 10, False)
    same((index[::2], sample[::-3]), blended(helpers, [0.5, 0.3, 0.2], 10))
    assert (index[1::2] == -7).all()
    assert (sample[::3] == -7).all()


def test_an_output_longer_than_the_blend_keeps_its_rest(helpers):
    index, sample = blend_arrays(12)
    helpers.build_blending_indices(index, sample, [0.5, 0.5], 2, 10, False)
    assert index[10:].tolist() == sample[10:].tolist() == [-1, -1]


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8, np.float64])
def test_weights_of_other_types_and_layouts_count_as_their_values(helpers, dtype):
    weights = np.array([5, 9, 3, 9, 2], dtype)[::2]
    same(blended(helpers, weights, 30), blended(helpers, [5.0, 3.0, 2.0], 30))


def test_a_weight_of_zero_is_never_drawn(helpers):
    index, _ = blended(helpers, [0, 1.0], 6)
    assert set(index.tolist()) == {1}
    index, _ = blended(helpers, [0.0] * 100 + [0.1] * 4 + [0.0] * 100, 50)
    assert set(index.tolist()) == {100, 101, 102, 103}


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (([0.5, -0.1], 2, 4), ValueError, r"weights\[1\] is -0.1"),
        (([0.5, float("nan")], 2, 4), ValueError, r"weights\[1\] is nan"),
        (([float("inf"), 0.5], 2, 4), ValueError, r"weights\[0\] is inf"),
        (([0.0, 0.0], 2, 4), ValueError, "weights are all zero"),
        (([0.5, 0.5], 3, 4), ValueError, "num_datasets is 3"),
        (([0.5, 0.5], 0, 4), ValueError, "num_datasets is 0"),
        (([], 0, 0), ValueError, "num_datasets is 0"),
        (([0.5, 0.5], 2.0, 4), TypeError, "num_datasets is a float"),
        (([0.5, 0.5], 2, -1), ValueError, "size is -1"),
        (([0.5, 0.5], 2, 2**70), ValueError, "size is 1180591620717411303424"),
        (([[0.5, 0.5]], 2, 4), ValueError, "weights has 2 dimensions"),
        ((["a", "b"], 2, 4), TypeError, "weights has dtype <U1"),
        ((None, 2, 4), (TypeError, ValueError), "weights"),
        (([0.5, 0.5j], 2, 4), TypeError, "weights has dtype complex128"),
    ],
)
def test_a_blend_refuses_what_makes_no_sense_by_name(helpers, arguments, error, named):
    """Case 88."""
    with pytest.raises(error, match=f"^{named}"):
        helpers.build_blending_indices(*blend_arrays(4), *arguments, False)


@pytest.mark.parametrize(
    ("sizes", "count", "error", "named"),
    [
        ([3, -1], 2, ValueError, r"sizes\[1\] is -1"),
        ([2**62, 2**62, 2**62], 3, ValueError, "sizes add up"),
        ([1.5, 2], 2, ValueError, "sizes has dtype float64"),
        ([3, 2], 3, ValueError, "num_datasets is 3"),
        ([3, 2], 2, ValueError, "dataset_index has room for 4 of 5"),
    ],
)
def test_an_exhaustive_blend_refuses_what_makes_no_sense_by_name(helpers, sizes, count, error, named):
    """Case 88."""
    with pytest.raises(error, match=f"^{named}"):
        helpers.build_exhaustive_blending_indices(*blend_arrays(4), sizes, count)


def test_verbose_tells_what_the_peer_tells(helpers, peer, capfd):
    arrays = (*blend_arrays(1000), [0.5, 0.25, 1 / 3], 3, 1000, True)
    helpers.build_blending_indices(*arrays)
    sys.stdout.flush()
    ours = capfd.readouterr().out
    peer.build_blending_indices(*arrays)
    assert ours == capfd.readouterr().out != ""


def test_verbose_counts_what_it_drew_though_the_outputs_overlap(helpers, capfd):
    """What lies there then is no dataset's number, and counting it would write elsewhere."""
    sample = np.zeros(200_000, np.int64)
    helpers.build_blending_indices(sample.view(np.int16)[::4], sample, [0.5, 0.5], 2, len(sample), True)
    sys.stdout.flush()
    assert "sample ratios" in capfd.readouterr().out


class Boaster(np.ndarray):
    """Says of itself what a test wants."""

    ndim = property(lambda _self: 1)  # type: ignore[assignment]
    dtype = property(lambda _self: np.dtype(np.int16))  # type: ignore[assignment]


def test_an_output_is_what_it_is_and_not_what_it_says(helpers):
    index, sample = blend_arrays(10)
    with pytest.raises(ValueError, match=r"^dataset_index has 0 dimensions"):
        helpers.build_blending_indices(np.array(5, np.int16).view(Boaster), sample, [0.1, 0.9], 2, 10, False)
    beyond = np.full(20, 7, np.int8)
    with pytest.raises(TypeError, match=r"^dataset_index has dtype int8"):
        helpers.build_blending_indices(beyond[:19:2].view(Boaster), sample, [0.1, 0.9], 2, 10, False)
    assert (beyond == 7).all()
    helpers.build_blending_indices(index.view(Boaster), sample, [0.1, 0.9], 2, 10, False)
    assert sorted(set(index)) == [0, 1]


class Raiser:
    """Cannot be asked."""

    def raise_it(self):
        raise InterruptedError("asked")

    __index__ = __bool__ = __float__ = raise_it


def test_what_an_argument_raises_is_raised(helpers):
    for arguments in ((Raiser(), 9, False), (1, Raiser(), False), (1, 9, Raiser())):
        with pytest.raises(InterruptedError, match="asked"):
            helpers.build_blending_indices(*blend_arrays(9), [0.5], *arguments)
    with pytest.raises(InterruptedError, match="asked"):
        helpers.build_mapping([0, 1], [1], 1, 10, 10, Raiser(), 1, False, 1)
    with pytest.raises(ValueError, match=r"^short_seq_prob is inf"):
        helpers.build_mapping([0, 1], [1], 1, 10, 10, 10**400, 1, False, 1)
