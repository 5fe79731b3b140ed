"""Every law through one suite: the torch.distributions contract and what users lean on."""

from __future__ import annotations

import math
import pickle
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributions import Distribution

import drpm
from drpm.distributions.partitions import PartitionLaw
from drpm.relaxation import filling
from tests.conformance import BAD, CASES, DISCRETE, RELAXED, BadCase, Case
from tests.oracles import generator

BATCHES = [(), (3,), (2, 3), (1,), (0,), (2, 0)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
discrete = pytest.mark.parametrize("case", DISCRETE, ids=lambda case: case.name)
relaxed = pytest.mark.parametrize("case", RELAXED, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _streamed_cases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices through the path of large ones, for the cases that ask for it."""
    case = getattr(request.node, "callspec", None) and request.node.callspec.params.get("case")
    if case is not None and case.streamed:
        monkeypatch.setattr(filling, "_DENSE_LIMIT_CPU", 0)
        monkeypatch.setattr(filling, "_DENSE_LIMIT_CUDA", 0)


@pytest.fixture(autouse=True, scope="module")
def _checks_are_off() -> Iterator[None]:
    """Torch's compiler switches the checks of all distributions off; those of our laws stay on."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    yield
    Distribution.set_default_validate_args(before)


def is_merged(case: Case) -> bool:
    return case.options.get("method") == "merged"


def statistics(case: Case, law: Distribution) -> dict[str, Tensor]:
    """All deterministic summaries a law offers."""
    names = ["mode"] if case.relaxed or isinstance(law, drpm.PlackettLuce) else ["mode", "mean"]
    if isinstance(law, drpm.AffinityPartition):
        names = ["greedy"]
    if isinstance(law, drpm.SizeLaw):
        names += ["variance"]
    if isinstance(law, drpm.FisherHypergeometric):
        names += ["log_normalizer"]
    if is_merged(case):
        names = []
    found = {name: getattr(law, name) for name in names}
    if isinstance(law, drpm.SizeLaw) and not is_merged(case):
        found["entropy"] = law.entropy()
    if isinstance(law, PartitionLaw):
        options = {"num_samples": 8, "generator": generator(0, law.log_weights.device.type)}
        found["entropy"] = law.entropy(**options)
        exact = isinstance(law, drpm.RandomPartition)
        found["marginals"] = law.marginals() if exact else law.marginals(**options)
    return found


def estimated(law: Distribution) -> list[str]:
    """The summaries that are means over samples."""
    if isinstance(law, drpm.AffinityPartition):
        return ["entropy", "marginals"]
    return ["entropy"] if isinstance(law, drpm.RandomPartition) else []


def noise_free(law: Distribution) -> Tensor:
    return law.greedy if isinstance(law, drpm.AffinityPartition) else law.mode


def scalar_of(case: Case, law: Distribution, value: Tensor | None = None) -> Tensor:
    """Something differentiable: the log-probability, or a weighted relaxed sample."""
    if not case.relaxed:
        return law.log_prob(value)
    sample = law.rsample(generator=generator())
    weights = torch.arange(1.0, 1.0 + math.prod(law.event_shape), dtype=sample.dtype).cos()
    return (sample * weights.reshape(law.event_shape)).flatten(-len(law.event_shape)).sum(-1)


# --- shapes ----------------------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_shapes(case: Case, batch: tuple[int, ...]) -> None:
    law = case.build(batch)
    assert law.batch_shape == batch
    assert law.event_shape == case.event_shape
    for shape in [(), (4,), (2, 1), (0,)]:
        value = law.sample(torch.Size(shape))
        assert value.shape == (*shape, *batch, *case.event_shape)
        if case.relaxed:
            assert law.rsample(torch.Size(shape)).shape == value.shape
        else:
            assert law.log_prob(value).shape == (*shape, *batch)
    assert law.sample((4,)).shape == (4, *batch, *case.event_shape)  # plain tuples do as well
    per_batch = ("entropy", "log_normalizer")
    for name, value in statistics(case, law).items():
        expected = batch if name in per_batch else (*batch, *case.event_shape)
        assert value.shape == expected, name


@discrete
def test_values_broadcast_against_the_batch(case: Case) -> None:
    law = case.build((3,))
    values = case.build().sample((4,)).unsqueeze(1)
    log_probs = law.log_prob(values)
    assert log_probs.shape == (4, 3)
    for b in range(3):
        single = case.make({k: v[b] for k, v in case.tensors((3,)).items()})
        for a in range(4):
            torch.testing.assert_close(log_probs[a, b], single.log_prob(values[a, 0]))


@pytest.mark.parametrize(
    "case", [c for c in CASES if len(c.shapes) == 2], ids=lambda case: case.name
)
def test_parameters_broadcast(case: Case) -> None:
    given = case.tensors((4, 1))
    given["log_weights"] = case.tensors((3,), seed=1)["log_weights"]
    law = case.make(given)
    assert law.batch_shape == (4, 3)
    wide = {
        name: tensor.expand(4, 3, *case.shapes[name]).contiguous() for name, tensor in given.items()
    }
    full = case.make(wide)
    assert torch.equal(
        law.sample((2,), generator=generator()), full.sample((2,), generator=generator())
    )
    if not case.relaxed:
        value = full.sample((2,))
        torch.testing.assert_close(law.log_prob(value), full.log_prob(value))
    torch.testing.assert_close(noise_free(law), noise_free(full))


@every_case
def test_expand(case: Case) -> None:
    law = case.build((3,))
    for batch in [(3,), (2, 3), (4, 1, 3), (0, 3)]:
        expanded = law.expand(torch.Size(batch))
        assert type(expanded) is type(law)
        assert expanded.batch_shape == batch
        assert expanded.event_shape == law.event_shape
        assert expanded._validate_args == law._validate_args
        value = expanded.sample((2,))
        assert value.shape == (2, *batch, *case.event_shape)
        if not case.relaxed:
            torch.testing.assert_close(expanded.log_prob(value), law.log_prob(value))
        expected = statistics(case, law)
        found = statistics(case, expanded)
        for name, stat in found.items():
            if name not in estimated(law):
                torch.testing.assert_close(stat, expected[name].expand(stat.shape))
        again = expanded.expand((2, *batch))
        assert again.batch_shape == (2, *batch)
    # draws of an expanded law are independent, not copies
    if not case.relaxed and law.expand((64, 3)).sample().unique(dim=0).shape[0] == 1:
        assert case.build().sample((64,)).unique(dim=0).shape[0] == 1
    quiet = case.build((3,), validate_args=False).expand((2, 3))
    assert quiet._validate_args is False


# --- the torch.distributions contract -------------------------------------------------------


@every_case
def test_arguments_satisfy_their_constraints(case: Case) -> None:
    law = case.build((2,))
    assert isinstance(law, Distribution)
    for name, constraint in law.arg_constraints.items():
        if name in law.__dict__ or name in case.shapes:
            assert constraint.check(torch.as_tensor(getattr(law, name))).all(), name
    for name in case.shapes:
        assert name in law.arg_constraints
        assert (
            not law.arg_constraints[name].check(torch.full_like(getattr(law, name), math.inf)).any()
        )
        assert (
            not law.arg_constraints[name].check(torch.full_like(getattr(law, name), math.nan)).any()
        )
    assert law.has_rsample is case.relaxed


@every_case
def test_samples_lie_in_the_support(case: Case) -> None:
    law = case.build((2,))
    value = law.sample((50,), generator=generator())
    checked = law.support.check(value)
    assert checked.shape == (50, 2)
    assert checked.dtype == torch.bool
    assert checked.all()
    assert not law.support.check(value - 1).any()
    assert not law.support.check(torch.full_like(value.double(), math.nan)).any()


@discrete
def test_mode_is_in_the_support_and_likelier_than_samples(case: Case) -> None:
    if is_merged(case):
        pytest.skip("the shortcut refuses moments and modes")
    law = case.build((4,))
    assert law.support.check(noise_free(law)).all()
    if isinstance(law, drpm.AffinityPartition):
        return  # the greedy partition need not be the most likely one
    best = law.log_prob(law.mode)
    assert (law.log_prob(law.sample((200,), generator=generator())) <= best + 1e-9).all()


@pytest.mark.parametrize(
    "case", [c for c in DISCRETE if c.build().has_enumerate_support], ids=lambda case: case.name
)
def test_enumerate_support(case: Case) -> None:
    law = case.build((2, 3))
    assert law.has_enumerate_support
    values = law.enumerate_support()
    assert values.shape[1:] == (2, 3, *case.event_shape)
    assert law.support.check(values).all()
    torch.testing.assert_close(
        law.log_prob(values).exp().sum(0), torch.ones(2, 3, dtype=torch.float64)
    )
    assert law.log_prob(values).isfinite().all()
    narrow = law.enumerate_support(expand=False)
    assert narrow.shape == (len(values), 1, 1, *case.event_shape)
    assert torch.equal(narrow.expand_as(values), values)
    rows = values[:, 0, 0].tolist()
    assert rows == sorted(rows)
    assert len({tuple(row) for row in rows}) == len(rows)


@relaxed
def test_relaxed_log_prob_is_refused_with_a_reason(case: Case) -> None:
    law = case.build()
    with pytest.raises(NotImplementedError) as error:
        law.log_prob(law.sample())
    assert len(str(error.value).split()) >= 8, "a sentence says why"


# --- dtypes and devices ----------------------------------------------------------------------


@every_case
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_dtype_and_device_are_kept(case: Case, dtype: torch.dtype, device: str) -> None:
    law = case.build((2,), dtype, device)
    integer = isinstance(law, drpm.PlackettLuce)
    for value in (law.sample((3,)), noise_free(law) if not is_merged(case) else law.sample()):
        assert value.dtype == (torch.int64 if integer else dtype)
        assert value.device.type == device
    if case.relaxed:
        assert law.rsample().dtype == dtype
        assert law.rsample().device.type == device
    else:
        assert law.log_prob(law.sample()).dtype == dtype
        assert law.log_prob(law.sample()).device.type == device
    for name, value in statistics(case, law).items():
        assert value.dtype == (torch.int64 if integer else dtype), name
        assert value.device.type == device, name
        assert torch.isfinite(value).all(), name


@every_case
@pytest.mark.parametrize("mode", ["bf16-inputs", "autocast", "autocast-bf16-inputs"])
def test_half_precision_stays_finite(case: Case, mode: str) -> None:
    dtype = torch.float32 if mode == "autocast" else torch.bfloat16
    tensors = {k: v.requires_grad_() for k, v in case.tensors((2,), dtype, scale=5.0).items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=mode.startswith("autocast")):
        law = case.make(tensors)
        value = law.sample((3,))
        assert torch.isfinite(value).all()
        for name, found in statistics(case, law).items():
            assert torch.isfinite(found).all(), name
        result = law.rsample((3,)) if case.relaxed else law.log_prob(value)
        assert torch.isfinite(result).all()
        if not case.relaxed:
            assert law.support.check(value).all()
    if result.requires_grad:
        (result.float() ** 2).sum().backward()
        for name, tensor in tensors.items():
            assert tensor.grad is not None, name
            assert torch.isfinite(tensor.grad).all(), name
            assert tensor.grad.dtype == dtype


@discrete
@pytest.mark.cuda
def test_cuda_agrees_with_cpu(case: Case) -> None:
    host, device = case.build((3,)), case.build((3,), device="cuda")
    value = host.sample((20,), generator=generator())
    on_device = device.log_prob(value.cuda())
    torch.testing.assert_close(on_device.cpu(), host.log_prob(value), rtol=1e-10, atol=1e-10)
    expected, found = statistics(case, host), statistics(case, device)
    for name in expected:
        if name not in estimated(host):
            torch.testing.assert_close(found[name].cpu(), expected[name], rtol=1e-9, atol=1e-9)
    assert device.support.check(device.sample((50,))).all()
    grads = []
    for place in ("cpu", "cuda"):
        tensors = {k: v.requires_grad_() for k, v in case.tensors((3,), device=place).items()}
        case.make(tensors).log_prob(value.to(place)).sum().backward()
        grads.append([t.grad.cpu() for t in tensors.values()])
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


@relaxed
@pytest.mark.cuda
def test_relaxed_mode_on_cuda_agrees_with_cpu(case: Case) -> None:
    results = []
    for place in ("cpu", "cuda"):
        tensors = {k: v.requires_grad_() for k, v in case.tensors((3,), device=place).items()}
        law = case.make(tensors)
        mode = law.mode
        (mode * torch.linspace(-1, 1, mode.numel(), device=place).view_as(mode)).sum().backward()
        grads = [torch.zeros(()) if t.grad is None else t.grad.cpu() for t in tensors.values()]
        results.append([mode.detach().cpu(), *grads])
        assert law.support.check(law.sample((20,), generator=generator(0, place))).all()
    torch.testing.assert_close(*results, rtol=1e-8, atol=1e-8)


# --- randomness and gradients ---------------------------------------------------------------


@every_case
def test_seeds_reproduce_draws(case: Case) -> None:
    law = case.build((2,))
    first = law.sample((16,), generator=generator(3))
    assert torch.equal(first, law.sample((16,), generator=generator(3)))
    torch.manual_seed(5)
    second = law.sample((16,))
    torch.manual_seed(5)
    assert torch.equal(second, law.sample((16,)))
    if case.relaxed:
        assert torch.equal(law.rsample((16,), generator=generator(3)), first)
    continued = generator(3)
    draws = [law.sample((16,), generator=continued) for _ in range(2)]
    fixed = case.make(case.tensors((2,))).sample((200,), generator=generator(7))
    if fixed.unique(dim=0).shape[0] > 1:
        assert not torch.equal(draws[0], draws[1])
        assert not torch.equal(law.sample((16,)), law.sample((16,)))


@every_case
def test_a_passed_generator_leaves_the_global_one_alone(case: Case) -> None:
    law = case.build((2,))
    before = torch.get_rng_state()
    law.sample((4,), generator=generator())
    statistics(case, law)
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_sample_carries_no_gradient(case: Case) -> None:
    tensors = {k: v.requires_grad_() for k, v in case.tensors((2,)).items()}
    law = case.make(tensors)
    value = law.sample((3,))
    assert not value.requires_grad
    assert value.grad_fn is None
    if case.relaxed:
        return
    law.log_prob(value).sum().backward()
    for name, tensor in tensors.items():
        assert tensor.grad is not None, name
        assert torch.isfinite(tensor.grad).all()


@relaxed
def test_rsample_carries_gradients_to_every_parameter(case: Case) -> None:
    if case.event_shape[-1] == 1:
        pytest.skip("a single element leaves nothing to learn")
    tensors = {k: v.requires_grad_() for k, v in case.tensors((2,)).items()}
    law = case.make(tensors)
    value = law.rsample((30,), generator=generator())
    assert value.requires_grad
    weights = torch.randn(value.shape, dtype=value.dtype, generator=generator(1))
    (value * weights).sum().backward()
    for name, tensor in tensors.items():
        assert torch.isfinite(tensor.grad).all()
        if case.shapes[name][0] == 1:  # a single group takes everything, whatever its weight
            assert (tensor.grad == 0).all()
        else:
            assert (tensor.grad.flatten(1).abs().sum(-1) > 1e-6).all(), name
    mode = law.mode
    assert mode.requires_grad


# --- validation -----------------------------------------------------------------------------


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_bad_arguments_are_refused_in_one_sentence(bad: BadCase) -> None:
    with pytest.raises(ValueError, match=bad.message) as error:
        bad.call()
    message = str(error.value)
    assert "\n" not in message
    assert ". " not in message.rstrip(". "), f"more than one sentence: {message}"


@every_case
def test_devices_without_float64_are_refused(case: Case) -> None:
    with FakeTensorMode():  # a device that the machine need not have
        tensors = {name: torch.zeros(shape, device="mps") for name, shape in case.shapes.items()}
    with pytest.raises(ValueError, match=r"^log_\w+ must be on a device that has float64.*'mps"):
        case.make(tensors)


@every_case
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf], ids=str)
def test_nothing_hangs_without_validation(case: Case, wrong: float) -> None:
    for spoiled in case.shapes:
        tensors = case.tensors((2,))
        tensors[spoiled][0, 0] = wrong
        good = case.build((2,)).sample()
        with time_limit(600), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            law = case.make(tensors, validate_args=False)
            value = law.sample((3,))
            assert value.shape == (3, 2, *case.event_shape)
            if case.relaxed:
                law.rsample((3,))
            else:
                assert law.log_prob(good).shape == (2,)
                # the other, healthy member of the batch is untouched
                expected = case.build((2,)).log_prob(good)
                torch.testing.assert_close(law.log_prob(good)[1], expected[1])


@discrete
def test_outside_the_support(case: Case) -> None:
    """Members of a batch that are outside do not spoil values and gradients of the others."""
    tensors = {k: v.requires_grad_() for k, v in case.tensors((2,)).items()}
    loud, quiet = case.make(tensors), case.make(tensors, validate_args=False)
    value = loud.sample()
    wrong = value.clone()
    if value.dtype == torch.int64:
        wrong[0] = 0 if case.event_shape[-1] > 1 else 1
    elif len(case.event_shape) == 2:
        wrong[0, :, 0] = 0
    else:
        wrong[0, 0] += 1
    with pytest.raises(ValueError, match="value must"):
        loud.log_prob(wrong)
    for bad in (wrong, torch.stack([0 * value[0], value[1]])):
        found = quiet.log_prob(bad)
        torch.testing.assert_close(found[1], loud.log_prob(value)[1])
        for grad in torch.autograd.grad(found[1], list(tensors.values())):
            assert torch.isfinite(grad).all()
    assert quiet.log_prob(wrong)[0] == -math.inf


@every_case
def test_validation_can_be_switched(case: Case) -> None:
    assert case.build(validate_args=True)._validate_args is True
    assert case.build(validate_args=False)._validate_args is False
    assert case.build()._validate_args is True
    loud, quiet = case.build((2,), validate_args=True), case.build((2,), validate_args=False)
    first = loud.sample((5,), generator=generator())
    assert torch.equal(first, quiet.sample((5,), generator=generator()))
    if not case.relaxed:
        assert torch.equal(loud.log_prob(first), quiet.log_prob(first))


# --- copies ---------------------------------------------------------------------------------


@every_case
def test_copies(case: Case) -> None:
    law = case.build((2,))
    used = case.build((2,))
    used.sample()
    statistics(case, used)  # caches, if any, must not break the copy
    for original in (law, used):
        twin = pickle.loads(pickle.dumps(original))
        assert type(twin) is type(law)
        assert repr(twin) == repr(law)
        assert twin.batch_shape == law.batch_shape
        value = law.sample((5,), generator=generator())
        assert torch.equal(value, twin.sample((5,), generator=generator()))
        if not case.relaxed:
            assert torch.equal(twin.log_prob(value), law.log_prob(value))


# --- function transforms --------------------------------------------------------------------


def law_of(case: Case, names: list[str], *tensors: Tensor) -> Distribution:
    return case.make(dict(zip(names, tensors, strict=True)))


@discrete
def test_vmap_of_log_prob(case: Case) -> None:
    names, tensors = list(case.shapes), case.tensors((4,))
    values = case.make(tensors).sample(generator=generator())

    def log_prob(value: Tensor, *parameters: Tensor) -> Tensor:
        return law_of(case, names, *parameters).log_prob(value)

    found = torch.func.vmap(log_prob)(values, *tensors.values())
    torch.testing.assert_close(found, case.make(tensors).log_prob(values))
    grads = torch.func.vmap(torch.func.grad(log_prob, argnums=1))(values, *tensors.values())
    leaf = {k: v.requires_grad_() for k, v in case.tensors((4,)).items()}
    case.make(leaf).log_prob(values).sum().backward()
    torch.testing.assert_close(grads, leaf[names[0]].grad, rtol=1e-7, atol=1e-9)


@every_case
@pytest.mark.parametrize("how", ["torch.func", "forward_ad"])
def test_forward_mode_agrees_with_reverse_mode_or_is_refused(case: Case, how: str) -> None:
    names, tensors = list(case.shapes), case.tensors((2,))
    value = None if case.relaxed else case.make(tensors).sample(generator=generator())
    primals, tangents = tuple(tensors.values()), tuple(case.tensors((2,), seed=1).values())

    def compute(*parameters: Tensor) -> Tensor:
        return scalar_of(case, law_of(case, names, *parameters), value)

    def forward_mode() -> Tensor | None:
        if how == "torch.func":
            return torch.func.jvp(compute, primals, tangents)[1]
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(
                compute(*map(forward_ad.make_dual, primals, tangents))
            ).tangent

    has_it = (drpm.SizeLaw, drpm.PlackettLuce, drpm.RelaxedPlackettLuce)
    found, refusal = None, ""
    try:
        found = forward_mode()
    except NotImplementedError as error:
        refusal = str(error)
    if found is None:
        # Limits lead through tables, which have reverse mode alone.
        assert "minimum" in case.options or not isinstance(case.make(tensors), has_it)
        assert case.name != "relaxed-partition-one-group"  # has nothing to draw
        assert re.match(NO_FORWARD_MODE, refusal)
        return
    jacobians = torch.func.jacrev(compute, tuple(range(len(names))))(*primals)
    pairs = zip(jacobians, tangents, strict=True)
    expected = sum((jacobian * tangent).flatten(1).sum(-1) for jacobian, tangent in pairs)
    torch.testing.assert_close(found, expected)


NO_FORWARD_MODE = r"^This function .* has no forward-mode .*\); use reverse mode, .*\.$"


@every_case
def test_vmap_of_summaries(case: Case) -> None:
    """All deterministic ones; those of a partition that cost a Monte Carlo estimate aside."""
    names, tensors = list(case.shapes), case.tensors((4,))
    expected = statistics(case, case.make(tensors))
    for name, value in expected.items():
        if name in estimated(case.make(tensors)):
            continue

        def summary(*parameters: Tensor, name: str = name) -> Tensor:
            found = getattr(law_of(case, names, *parameters), name)
            return found() if callable(found) else found

        found = torch.func.vmap(summary)(*tensors.values())
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-10)


@every_case
def test_vmap_of_sample(case: Case) -> None:
    names, tensors = list(case.shapes), case.tensors((4,))
    law = case.make(tensors)

    def sample(*parameters: Tensor) -> Tensor:
        return law_of(case, names, *parameters).sample()

    found = torch.func.vmap(sample, randomness="different")(*tensors.values())
    assert found.shape == (4, *case.event_shape)
    assert law.support.check(found).all()
    same = {k: v[:1].expand(100, *v.shape[1:]).contiguous() for k, v in tensors.items()}
    repeated = torch.func.vmap(sample, randomness="different")(*same.values())
    if case.make(tensors).sample((100,))[:, 0].unique(dim=0).shape[0] > 1:
        assert repeated.unique(dim=0).shape[0] > 1


@relaxed
def test_vmap_of_rsample_with_gradients(case: Case) -> None:
    """Against a loop, with the same noise for all members, and with noise of their own."""
    names, tensors = list(case.shapes), case.tensors((3,))
    cotangent = torch.linspace(-1, 1, math.prod(case.event_shape), dtype=torch.float64)

    def value(*parameters: Tensor) -> Tensor:
        sample = law_of(case, names, *parameters).rsample()
        return (sample * cotangent.reshape(case.event_shape)).sum()

    gradient = torch.func.grad(value, argnums=tuple(range(len(names))))
    torch.manual_seed(0)
    mapped = torch.func.vmap(gradient, randomness="same")(*tensors.values())
    for b in range(3):
        torch.manual_seed(0)
        leaves = [t[b].clone().requires_grad_() for t in tensors.values()]
        value(*leaves).backward()
        for found, leaf in zip(mapped, leaves, strict=True):
            torch.testing.assert_close(found[b], leaf.grad, rtol=1e-8, atol=1e-10)
    for found in torch.func.vmap(gradient, randomness="different")(*tensors.values()):
        assert torch.isfinite(found).all()


def compiled_twice(
    case: Case, compute: Callable[..., tuple[Tensor, ...]], **options: Any
) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Values and gradients of a function of the parameters, run as it is and compiled."""
    torch._dynamo.reset()
    results = []
    for function in (compute, torch.compile(compute, **options)):
        leaves = [t.requires_grad_() for t in case.tensors((2,)).values()]
        torch.manual_seed(1)
        outputs = function(*leaves)
        total = torch.zeros((), dtype=torch.float64)
        for out in outputs:
            if out.requires_grad:
                weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
                total = total + (out * weights).sum()
        total.backward()
        results.append([*(out.detach() for out in outputs), *[leaf.grad for leaf in leaves]])
    return results[0], results[1]


def assert_same(found: list[Tensor | None], expected: list[Tensor | None]) -> None:
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)


# One case for each path through the code: other values, or a single element, change no operation.
# The streamed path chooses its blocks by the values, so it runs in many small graphs: 15 seconds.
COMPILED = [
    *("sizes", "sizes-capacities", "sizes-limits", "sizes-limits-two-groups", "sizes-one-group"),
    *("sizes-merged", "sizes-multinomial", "order", "partition", "partition-limits"),
    *("partition-one-group", "affinity", "affinity-limits", "affinity-one-group"),
    *("relaxed-sizes-hard", "relaxed-sizes-soft", "relaxed-sizes-limits-hard"),
    *("relaxed-order-hard", "relaxed-order-soft", "relaxed-order-softsort"),
    *("relaxed-order-sinkhorn", "relaxed-partition-hard", "relaxed-partition-sizes"),
    *("relaxed-partition-limits-soft", "relaxed-partition-softsort", "relaxed-partition-one-group"),
    *("relaxed-partition-streamed", "relaxed-affinity-hard", "relaxed-affinity-sizes"),
    *("relaxed-affinity-limits", "relaxed-affinity-one-group"),
]
# The noise-free mode shares all but the size tables with a draw: once a law is enough.
COMPILED_MODES = [
    *("relaxed-sizes-hard", "relaxed-order-soft", "relaxed-partition-hard"),
    "relaxed-affinity-hard",
]


def named(name: str) -> Case:
    (case,) = (c for c in CASES if c.name == name)
    return case


# Both warnings are torch's own: while it traces, and where one graph ends and the next begins.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("case", [named(name) for name in COMPILED], ids=lambda case: case.name)
def test_compile_agrees_with_eager(case: Case) -> None:
    """Draws too, from the same seed: log_prob and sample, or rsample with gradients."""
    names, tensors = list(case.shapes), case.tensors((2,))
    value = None if case.relaxed else case.make(tensors).sample(generator=generator())

    def compute(*parameters: Tensor) -> tuple[Tensor, ...]:
        law = law_of(case, names, *parameters)
        if case.name in COMPILED_MODES:
            return law.rsample(), law.mode
        return (law.rsample(),) if case.relaxed else (law.log_prob(value), law.sample((5,)))

    expected, found = compiled_twice(case, compute, backend="aot_eager")
    assert_same(found, expected)


# Down to machine code: an order's log_prob, and a draw of a partition with gradients in scores and
# weights. The exact log_prob of a partition compiles as well and agrees, but its search for the
# nodes unrolls into so much code that it takes more than twenty seconds.
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["order", "relaxed-partition-hard"])
def test_compile_down_to_machine_code(name: str) -> None:
    case = named(name)
    names = list(case.shapes)
    value = None if case.relaxed else case.build((2,)).sample(generator=generator())

    def compute(*parameters: Tensor) -> tuple[Tensor, ...]:
        law = law_of(case, names, *parameters)
        return (law.rsample() if case.relaxed else law.log_prob(value),)

    # The compiler's own random numbers would not follow the seed.
    expected, found = compiled_twice(case, compute, options={"fallback_random": True})
    assert_same(found, expected)
