"""The sample index: where each sample of fixed length begins."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodecache import megatron
from tests.megatron_rules import same, slow_sample_index

pytest_plugins = ("tests.megatron_fixtures",)

shared = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def built(helpers, helpers_root, monkeypatch):
    """Make nodecache.megatron use the helpers of this run."""
    monkeypatch.setenv("NODECACHE_ROOT", str(helpers_root))


@st.composite
def readings(draw, smallest=0):
    sizes = draw(st.lists(st.integers(smallest, 40), min_size=1, max_size=30))
    epochs = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    order = np.random.default_rng(seed)
    documents = np.concatenate([order.permutation(len(sizes)) for _ in range(epochs)]).astype(np.int32)
    length = draw(st.integers(2, 100))
    drop, extra = draw(st.booleans()), draw(st.integers(0, 1))
    return np.array(sizes, np.int32), documents, length, epochs, sum(sizes), drop, extra


def meaningful(reading):
    _, _, _, _, per_epoch, drop, extra = reading
    return not (per_epoch == 0 and drop and extra)  # there the peer writes before its array


@pytest.mark.parametrize("width", ["32", "64"])
@shared
@given(reading=readings().filter(meaningful))
def test_a_sample_index_is_the_peers_bit_for_bit(helpers, peer, width, reading):
    name = f"build_sample_idx_int{width}"
    same([getattr(helpers, name)(*reading)], [getattr(peer, name)(*reading)])


@shared
@given(reading=readings(smallest=1))
def test_a_sample_index_follows_the_rule(helpers, reading):
    assert helpers.build_sample_idx_int64(*reading).tolist() == [list(row) for row in slow_sample_index(*reading)]


def test_sizes_near_two_to_the_31_do_not_overflow(helpers, peer):
    sizes = np.array([2**31 - 1, 5, 2**31 - 2], np.int32)
    documents = np.array([0, 2, 1, 2, 0] * 3, np.int32)
    tokens = int(sizes[documents].sum(dtype=np.int64))
    arguments = (sizes, documents, 2**30 + 1, 3, tokens // 3, False, 1)
    ours = helpers.build_sample_idx_int64(*arguments)
    same([ours], [peer.build_sample_idx_int64(*arguments)])
    assert ours.tolist() == [list(row) for row in slow_sample_index(*arguments)]


@pytest.mark.parametrize("width", [32, 64])
def test_four_billion_tokens_in_one_document_are_counted_exactly(helpers, width):
    """Case 77."""
    build = getattr(helpers, f"build_sample_idx_int{width}")
    index = build(np.array([2**20], np.int32), np.zeros(4096, np.int32), 2**20, 4096, 2**20, True, 1)
    assert len(index) == 4096
    assert index[:2].tolist() == [[0, 0], [1, 0]]
    assert index[-1].tolist() == [4095, 0]
    assert (index >= 0).all()


def test_three_small_documents_give_the_known_rows(helpers):
    """Case 77."""
    sizes, documents = np.array([3, 5, 2], np.int32), np.array([0, 1, 2], np.int32)
    assert helpers.build_sample_idx_int32(sizes, documents, 4, 1, 10, True, 1).tolist() == [[0, 0], [1, 1], [2, 0]]
    kept = helpers.build_sample_idx_int32(sizes, documents, 4, 1, 10, False, 1)
    assert kept.tolist() == [[0, 0], [1, 1], [2, 0], [2, 1]]


def test_row_counts_are_exact_where_doubles_are_not(helpers):
    # One token less than 2**23 samples of 2**31 - 1 tokens: as a double that is rounded to one sample more.
    length, samples = 2**31 - 1, 2**23
    documents = np.broadcast_to(np.int32(0), (samples,))
    index = helpers.build_sample_idx_int32([length], documents, length, 1, samples * length, True, 1)
    assert len(index) == samples
    assert index[-1].tolist() == [samples - 1, 0]


@pytest.mark.parametrize(
    ("sizes", "documents"),
    [
        ([3, 5, 2], [0, 1, 2]),
        (np.array([3, 5, 2]), np.array([0, 1, 2], np.uint8)),
        (np.array([3.0, 5.0, 2.0]), np.array([0, 1, 2], np.int64)),
        (np.array([3, 9, 5, 9, 2], np.int32)[::2], np.array([2, 1, 0], np.int32)[::-1]),
        (np.array([3, 5, 2], ">i4"), np.array([0, 1, 2], np.uint64)),
        (np.frombuffer(b"\0" + np.array([3, 5, 2], np.int32).tobytes(), np.int32, 3, 1), [0, 1, 2]),
    ],
)
def test_what_converts_without_loss_counts_as_its_values(helpers, sizes, documents):
    index = helpers.build_sample_idx_int32(sizes, documents, 4, 1, 10, False, True)
    assert index.tolist() == [[0, 0], [1, 1], [2, 0], [2, 1]]


GOOD = {
    "sizes": [3, 5, 2],
    "document_idx": [0, 1, 2],
    "seq_length": 4,
    "num_epochs": 1,
    "tokens_per_epoch": 10,
    "drop_last_partial_sequence": True,
    "add_extra_token_to_sequence": 1,
}


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"seq_length": 0}, ValueError, "seq_length is 0"),
        ({"seq_length": 1}, ValueError, "seq_length is 1"),
        ({"seq_length": -4}, ValueError, "seq_length is -4"),
        ({"seq_length": 2**31}, ValueError, "seq_length is 2147483648"),
        ({"seq_length": 4.0}, TypeError, "seq_length is a float"),
        ({"num_epochs": 0}, ValueError, "num_epochs is 0"),
        ({"tokens_per_epoch": -1}, ValueError, "tokens_per_epoch is -1"),
        ({"tokens_per_epoch": 0}, ValueError, "tokens_per_epoch is 0"),
        ({"tokens_per_epoch": 100}, ValueError, "tokens_per_epoch is 100"),
        ({"tokens_per_epoch": 2**62, "num_epochs": 2**31 - 1}, ValueError, "tokens_per_epoch is"),
        ({"document_idx": []}, ValueError, "document_idx is empty"),
        ({"document_idx": [0, 3, 2]}, IndexError, r"document_idx\[1\] is 3"),
        ({"document_idx": [0, -1, 2]}, IndexError, r"document_idx\[1\] is -1"),
        ({"document_idx": [0, 0.5]}, ValueError, "document_idx has dtype float64"),
        ({"document_idx": [0, 2**40]}, ValueError, "document_idx has dtype int64"),
        ({"document_idx": [[0, 1, 2]]}, ValueError, "document_idx has 2 dimensions"),
        ({"sizes": []}, IndexError, r"document_idx\[0\] is 0"),
        ({"sizes": [3, -5, 2]}, ValueError, r"sizes\[1\] is negative"),
        ({"sizes": [3, 2**31, 2]}, ValueError, "sizes has dtype int64"),
        ({"sizes": [3, 2**32 + 5, 2]}, ValueError, "sizes has dtype int64"),
        ({"sizes": [3, float("nan"), 2]}, ValueError, "sizes has dtype float64"),
        ({"sizes": ["3"]}, TypeError, "sizes has dtype <U1"),
        ({"add_extra_token_to_sequence": 2}, ValueError, "add_extra_token_to_sequence is 2"),
        ({"add_extra_token_to_sequence": -1}, ValueError, "add_extra_token_to_sequence is -1"),
    ],
)
def test_a_sample_index_refuses_what_makes_no_sense_by_name(helpers, width, change, error, named):
    """Case 88."""
    with pytest.raises(error, match=f"^{named}"):
        getattr(helpers, f"build_sample_idx_int{width}")(*(GOOD | change).values())


@pytest.mark.parametrize(("documents", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_the_dtype_follows_the_number_of_documents(built, documents, dtype):
    many = np.broadcast_to(np.int32(0), (documents,))
    assert megatron.build_sample_idx(np.array([7], np.int32), many, 4, 1, 8).dtype == dtype


def test_the_wrapper_refuses_an_index_with_a_negative_offset(built):
    arguments = (np.array([3, 5, 0], np.int32), np.array([0, 1, 2], np.int32), 4, 1, 8, False)
    with pytest.raises(ValueError, match=r"^sizes"):
        megatron.build_sample_idx(*arguments)
    assert megatron.build_sample_idx(*arguments, add_extra_token_to_sequence=False).tolist()[-1] == [1, 5]
