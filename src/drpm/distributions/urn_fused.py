"""The urn's tables and draws on a GPU, in a few launches, with gradients.

The functions here take canonical shapes, tables (B, ...) and draws (S, B, ...), and wrap the
kernels of :mod:`drpm.distributions.urn_kernels`. Whether they can be used is for :func:`available`
to say; everything they do, plain torch does elsewhere.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drpm.distributions.urn_windows import soft_laws_at, tables_at
from drpm.relaxation.launching import has_triton, launch, power_of_two
from drpm.relaxation.mapping import apply, needs_plain, plain_gradients, to_leading

# Beyond these an urn is enough work for a whole GPU, and one program for each would be slower.
_WIDEST = 1024
_MOST_GROUPS = 64


def available(like: Tensor, groups: int, width: int) -> bool:
    """Whether urns of so many groups and so wide a window can take this path."""
    return (
        like.is_cuda
        and 2 <= groups <= _MOST_GROUPS
        and width <= _WIDEST
        and like.numel() > 0
        and not torch.compiler.is_compiling()  # a compiler fuses the plain version by itself
        and has_triton()
    )


def _tile(width: int) -> dict[str, int]:
    """Rows and columns of a table that a program works on at once, in some 64 numbers a thread."""
    rows = min(512, max(32, power_of_two(width)))
    return {"ROWS": rows, "COLS": 16 if rows > 128 else 32, "num_warps": 16 if rows > 128 else 4}


class Tables(NamedTuple):
    """What ``urn_tables.SuffixTables`` holds, and what the backward pass needs beside it."""

    first: Tensor  # (B, K - 1)
    log_steps: Tensor  # (B, K - 1, 2 W - 1)
    log_suffix: Tensor  # (B, K - 1, W)
    steps: Tensor  # (B, K - 1, 2 W - 1) the masses
    log_last: Tensor  # (B, W) log-mass of the last group
    masses: Tensor  # (B, K - 1, W) of the suffixes, or their logarithms where these are maxima
    slopes: Tensor  # (B, K, 3) shift of the sizes, mean, tilt

    @property
    def tilt(self) -> Tensor:
        return self.slopes[..., 0, 2]


def tables(
    total: int, width: int, log_weights: Tensor, capacities: Tensor, *, maximise: bool, large: bool
) -> Tables:
    """The suffix tables of urns (B, K) in float64."""
    settings = _Settings(total, width, maximise, large)
    return Tables(*apply(_Tables, log_weights, capacities, settings))


class _Settings(NamedTuple):
    total: int
    width: int
    maximise: bool
    large: bool


class _Tables(torch.autograd.Function):
    @staticmethod
    def forward(log_weights: Tensor, capacities: Tensor, settings: _Settings) -> Tables:
        from drpm.distributions import urn_kernels as kernels

        total, width, maximise, large = settings
        log_weights, capacities = log_weights.contiguous(), capacities.contiguous()
        batch, groups = log_weights.shape
        new = log_weights.new_empty
        out = Tables(
            first=new(batch, groups - 1),
            log_steps=new(batch, groups - 1, 2 * width - 1),
            log_suffix=new(batch, groups - 1, width),
            steps=new(batch, groups - 1, 2 * width - 1),
            log_last=new(batch, width),
            masses=new(batch, groups - 1, width),
            slopes=new(batch, groups, 3),
        )
        launch(
            kernels.steps_kernel,
            (batch, groups),
            log_weights,
            log_weights,
            capacities,
            out.first,
            out.log_steps,
            out.steps,
            out.log_last,
            out.slopes,
            total,
            groups,
            width,
            LARGE=large,
            KB=power_of_two(groups),
            BLOCK=256,
        )
        launch(
            kernels.chain_kernel,
            (batch,),
            log_weights,
            out.log_steps,
            out.steps,
            out.log_last,
            out.log_suffix,
            out.masses,
            groups,
            width,
            MAXIMISE=maximise,
            **_tile(width),
        )
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tables) -> None:
        log_weights, capacities, ctx.settings = inputs
        out = Tables(*output)
        ctx.mark_non_differentiable(out.first, out.steps, out.log_last, out.masses, out.slopes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(log_weights, capacities, *out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        log_weights, capacities, *rest = ctx.saved_tensors
        saved = Tables(*rest)
        if grads[1] is None and grads[2] is None:
            return None, None, None
        steps_grad = torch.zeros_like(saved.log_steps) if grads[1] is None else grads[1]
        suffix_grad = torch.zeros_like(saved.log_suffix) if grads[2] is None else grads[2]
        if needs_plain(steps_grad):  # the plain version has derivatives of its own

            def plain(log_weights: Tensor) -> tuple[Tensor, Tensor]:
                return tables_at(
                    ctx.settings.total,
                    log_weights,
                    capacities,
                    saved.tilt,
                    saved.first,
                    maximise=ctx.settings.maximise,
                    large=ctx.settings.large,
                )

            (grad,) = plain_gradients(plain, (log_weights,), (steps_grad, suffix_grad))
            return grad, None, None
        grad = apply(
            _TablesGradient,
            saved.log_steps,
            saved.steps,
            saved.log_last,
            saved.masses,
            saved.slopes,
            steps_grad,
            suffix_grad,
            ctx.settings.maximise,
        )
        return grad, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        merged = _merge(info, in_dims[:2], inputs[:2])
        out = apply(_Tables, *merged, inputs[2])
        return tuple(_split(info, tensor) for tensor in out), (0,) * len(out)


class _TablesGradient(torch.autograd.Function):
    """The backward pass as a function of its own, so that it maps over batches as well."""

    @staticmethod
    def forward(
        log_steps: Tensor,
        steps: Tensor,
        log_last: Tensor,
        masses: Tensor,
        slopes: Tensor,
        steps_grad: Tensor,
        suffix_grad: Tensor,
        maximise: bool,
    ) -> Tensor:
        from drpm.distributions import urn_kernels as kernels

        batch, boundaries, width = masses.shape
        groups = boundaries + 1
        running = torch.empty_like(masses)
        weights_grad = masses.new_empty(batch, groups)
        launch(
            kernels.chain_gradient_kernel,
            (batch,),
            masses,
            log_steps,
            steps,
            masses,
            suffix_grad.contiguous(),
            running,
            groups,
            width,
            MAXIMISE=maximise,
            **_tile(width),
        )
        launch(
            kernels.steps_gradient_kernel,
            (batch, groups),
            masses,
            log_steps,
            steps,
            log_last,
            masses,
            running,
            steps_grad.contiguous(),
            slopes,
            weights_grad,
            groups,
            width,
            MAXIMISE=maximise,
            **_tile(width),
        )
        return weights_grad

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("the sizes' tables have no second derivatives inside torch.func.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        merged = _merge(info, in_dims[:-1], inputs[:-1])
        grad: Tensor = apply(_TablesGradient, *merged, inputs[-1])
        return _split(info, grad), 0


def _merge(info: Any, in_dims: Sequence[Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The mapped dimension becomes part of the batch."""
    return [tensor.flatten(0, 1).contiguous() for tensor in to_leading(info, in_dims, inputs)]


def _split(info: Any, tensor: Tensor) -> Tensor:
    return tensor.reshape(info.batch_size, -1, *tensor.shape[1:])


class Draws(NamedTuple):
    sizes: Tensor  # (S, B, K)
    laws: Tensor  # (S, B, K - 1, n + 1) the law of every soft size


def best_choices(
    first: Tensor, log_steps: Tensor, log_suffix: Tensor, noise: Tensor, total: int
) -> Tensor:
    """Sizes (S, B, K) for noise (S, B, K - 1, W)."""
    sizes: Tensor = apply(_BestChoices, first, log_steps, log_suffix, noise, total)
    return sizes


def soft_draws(
    first: Tensor,
    log_steps: Tensor,
    log_suffix: Tensor,
    noise: Tensor | None,
    sizes: Tensor | None,
    temperature: Tensor,
    total: int,
) -> Draws:
    """Draws by noise (S, B, K - 1, W), or along given sizes (S, B, K), with soft size laws.

    ``temperature`` is (1,) or (B,).
    """
    hard, laws, _ = apply(
        _SoftDraws, first, log_steps, log_suffix, noise, sizes, temperature, total
    )
    return Draws(hard, laws)


def _launch_draw(
    first: Tensor,
    log_steps: Tensor,
    log_suffix: Tensor,
    noise: Tensor | None,
    sizes: Tensor | None,
    temperature: Tensor | None,
    total: int,
    laws: Tensor | None,
) -> tuple[Tensor, Tensor]:
    from drpm.distributions import urn_kernels as kernels

    given = noise if noise is not None else sizes
    assert given is not None
    draws, batch = given.shape[:2]
    boundaries, width = log_suffix.shape[-2:]
    hard = first.new_empty(draws, batch, boundaries + 1)
    positions = torch.empty((draws, batch, boundaries), dtype=torch.int32, device=first.device)
    unused = first
    launch(
        kernels.draw_kernel,
        (draws * batch,),
        first,
        first.contiguous(),
        log_steps.contiguous(),
        log_suffix.contiguous(),
        unused if noise is None else noise.contiguous(),
        unused if sizes is None else sizes.contiguous(),
        unused if temperature is None else temperature.contiguous(),
        hard,
        positions,
        unused if laws is None else laws,
        batch,
        total,
        boundaries + 1,
        width,
        FREE=sizes is None,
        NOISY=noise is not None,
        SOFT=laws is not None,
        WARM=temperature is not None and temperature.numel() > 1,
        BLOCK=max(32, power_of_two(width)),
    )
    return hard, positions


class _BestChoices(torch.autograd.Function):
    @staticmethod
    def forward(
        first: Tensor, log_steps: Tensor, log_suffix: Tensor, noise: Tensor, total: int
    ) -> Tensor:
        return _launch_draw(first, log_steps, log_suffix, noise, None, None, total, None)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        return (None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        tables = _merge(info, in_dims[:3], inputs[:3])
        noise = _merge_draws(info, in_dims[3], inputs[3])
        sizes = apply(_BestChoices, *tables, noise, inputs[4])
        return sizes.unflatten(1, (info.batch_size, -1)), 1


class _SoftDraws(torch.autograd.Function):
    @staticmethod
    def forward(
        first: Tensor,
        log_steps: Tensor,
        log_suffix: Tensor,
        noise: Tensor | None,
        sizes: Tensor | None,
        temperature: Tensor,
        total: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        given = noise if noise is not None else sizes
        assert given is not None
        laws = first.new_zeros(*given.shape[:2], log_suffix.shape[-2], total + 1)
        hard, positions = _launch_draw(
            first, log_steps, log_suffix, noise, sizes, temperature, total, laws
        )
        return hard, laws, positions

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        first, log_steps, log_suffix, noise, _, temperature, ctx.total = inputs
        hard, laws, positions = output
        ctx.mark_non_differentiable(hard, positions)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            first, log_steps, log_suffix, noise, temperature, hard, positions, laws
        )

    @staticmethod
    def backward(ctx: Any, _hard: Any, laws_grad: Tensor | None, _positions: Any) -> Any:
        if laws_grad is None:
            return (None,) * 7
        first, log_steps, log_suffix, noise, temperature, hard, positions, laws = ctx.saved_tensors
        inputs = (first, log_steps, log_suffix, noise, temperature, hard, positions)
        if needs_plain(laws_grad):  # the plain version has derivatives of its own

            def plain(log_steps: Tensor, log_suffix: Tensor, temperature: Tensor) -> Tensor:
                tables = (first, log_steps, log_suffix)
                return soft_laws_at(*tables, noise, temperature, hard, positions, ctx.total)

            leaves = (log_steps, log_suffix, temperature)
            grads = plain_gradients(plain, leaves, (laws_grad,))
        else:
            warms = ctx.needs_input_grad[5]
            grads = tuple(apply(_SoftDrawsGradient, *inputs, laws, laws_grad, ctx.total, warms))
        return None, grads[0], grads[1], None, None, grads[2], None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        first, log_steps, log_suffix = _merge(info, in_dims[:3], inputs[:3])
        noise, sizes = (_merge_draws(info, in_dims[i], inputs[i]) for i in (3, 4))
        temperature = _merge_temperature(info, in_dims[5], inputs[5], first.shape[0])
        out = apply(_SoftDraws, first, log_steps, log_suffix, noise, sizes, temperature, inputs[6])
        return tuple(t.unflatten(1, (info.batch_size, -1)) for t in out), (1, 1, 1)


def _merge_draws(info: Any, dim: int | None, draws: Tensor | None) -> Tensor | None:
    """(S, B, ...) with a mapped dimension somewhere becomes (S, V B, ...)."""
    if draws is None:
        return None
    (leading,) = to_leading(info, (dim,), (draws,))
    return leading.movedim(0, 1).flatten(1, 2).contiguous()


def _merge_temperature(info: Any, dim: int | None, temperature: Tensor, batch: int) -> Tensor:
    """(1,) or (B,), mapped or not, becomes (V B,)."""
    (leading,) = to_leading(info, (dim,), (temperature,))
    return leading.expand(info.batch_size, batch // info.batch_size).flatten()


class _SoftDrawsGradient(torch.autograd.Function):
    """The backward pass as a function of its own, so that it maps over batches as well."""

    @staticmethod
    def forward(
        first: Tensor,
        log_steps: Tensor,
        log_suffix: Tensor,
        noise: Tensor | None,
        temperature: Tensor,
        hard: Tensor,
        positions: Tensor,
        laws: Tensor,
        laws_grad: Tensor,
        total: int,
        warms: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from drpm.distributions import urn_kernels as kernels

        draws, batch, boundaries = positions.shape
        width = log_suffix.shape[-1]
        steps_grad = laws.new_zeros(draws, batch, boundaries, 2 * width - 1)
        suffix_grad = laws.new_empty(draws, batch, boundaries, width)
        heat_grad = (laws.new_empty if warms else laws.new_zeros)(draws, batch, boundaries)
        warm = temperature.numel() > 1
        launch(
            kernels.draw_gradient_kernel,
            (draws * batch, boundaries),
            first,
            first.contiguous(),
            log_steps.contiguous(),
            log_suffix.contiguous(),
            first if noise is None else noise.contiguous(),
            temperature.contiguous(),
            hard.contiguous(),
            positions.contiguous(),
            laws.contiguous(),
            laws_grad.contiguous(),
            steps_grad,
            suffix_grad,
            heat_grad,
            batch,
            total,
            boundaries + 1,
            width,
            NOISY=noise is not None,
            WARM=warm,
            HEAT_GRAD=warms,
            KB=power_of_two(boundaries + 1),
            BLOCK=max(32, power_of_two(width)),
        )
        if draws == 1:
            steps_grad, suffix_grad = steps_grad[0], suffix_grad[0]
        else:
            steps_grad, suffix_grad = steps_grad.sum(0), suffix_grad.sum(0)
        per_urn = heat_grad.sum((0, 2)) if warms else heat_grad[0, :, 0]
        return steps_grad, suffix_grad, per_urn if warm else per_urn.sum(0, keepdim=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError("soft sizes have no second derivatives inside torch.func.")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        first, log_steps, log_suffix = _merge(info, in_dims[:3], inputs[:3])
        noise = _merge_draws(info, in_dims[3], inputs[3])
        temperature = _merge_temperature(info, in_dims[4], inputs[4], first.shape[0])
        rest = [_merge_draws(info, in_dims[i], inputs[i]) for i in range(5, 9)]
        steps, suffix, heat = apply(
            _SoftDrawsGradient, first, log_steps, log_suffix, noise, temperature, *rest, *inputs[9:]
        )
        heat = _split(info, heat)
        shared = inputs[4].shape[0 if in_dims[4] is None else 1 - in_dims[4]] == 1
        if shared:  # one temperature for the whole batch
            heat = heat.sum(1, keepdim=True)
        return (_split(info, steps), _split(info, suffix), heat), (0, 0, 0)


def mode(total: int, log_weights: Tensor, capacities: Tensor) -> Tensor:
    """The most likely sizes of urns (..., K) in float64."""
    modes: Tensor = apply(_Mode, log_weights, capacities, total)
    return modes


class _Mode(torch.autograd.Function):
    @staticmethod
    def forward(log_weights: Tensor, capacities: Tensor, total: int) -> Tensor:
        from drpm.distributions import urn_kernels as kernels

        groups = log_weights.shape[-1]
        modes = torch.empty_like(log_weights, memory_format=torch.contiguous_format)
        launch(
            kernels.mode_kernel,
            (modes.numel() // groups,),
            log_weights,
            log_weights.contiguous(),
            capacities.contiguous(),
            modes,
            total,
            groups,
            KB=power_of_two(groups),
        )
        return modes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        moved = to_leading(info, in_dims[:2], inputs[:2])
        return apply(_Mode, *moved, inputs[2]), 0


def running_products(spectra: Tensor) -> Tensor:
    """Of complex (..., j, F) along j; no gradients of its own."""
    from drpm.distributions import urn_kernels as kernels

    spectra = torch.view_as_real(spectra.contiguous())
    products = torch.empty_like(spectra)
    count, bins = spectra.shape[-3:-1]
    grid = (spectra.shape[:-3].numel(), -(-bins // 128))
    launch(kernels.products_kernel, grid, spectra, spectra, products, count, bins, BLOCK=128)
    return torch.view_as_complex(products)


def running_products_gradient(spectra: Tensor, pulls: Tensor) -> Tensor:
    """What pulls on the running products are in the spectra."""
    from drpm.distributions import urn_kernels as kernels

    spectra = torch.view_as_real(spectra.contiguous())
    pulls = torch.view_as_real(pulls.contiguous())
    grads = torch.empty_like(spectra)
    count, bins = spectra.shape[-3:-1]
    grid = (spectra.shape[:-3].numel(), -(-bins // 128))
    launch(
        kernels.products_gradient_kernel,
        grid,
        spectra,
        spectra,
        pulls,
        grads,
        count,
        bins,
        BLOCK=128,
    )
    return torch.view_as_complex(grads)
