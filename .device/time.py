import time, torch, drpm, sys

torch.manual_seed(0)


def make(n, K, S, hard=True, noise="both"):
    a = torch.randn(K, n, device="cuda").requires_grad_()
    w = torch.zeros(K, device="cuda").requires_grad_()
    c = torch.randn(S, K, n, device="cuda") if S else torch.randn(K, n, device="cuda")

    def step():
        law = drpm.RelaxedAffinityPartition(0.5, a, w, hard=hard, validate_args=False)
        Y = law.rsample_parts((S,) if S else (), noise=noise).Y
        return torch.autograd.grad((Y * c).sum(), (a, w))

    return step


def timed(f, r=20):
    for _ in range(3):
        f()
    torch.cuda.synchronize()
    a = time.perf_counter()
    for _ in range(r):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - a) / r * 1e3


for n, K, S, noise in (
    (256, 10, 0, "both"),
    (256, 10, 100, "order"),
    (2048, 10, 0, "both"),
    (2048, 10, 100, "order"),
    (10000, 10, 0, "both"),
):
    step = make(n, K, S, noise=noise)
    torch.cuda.reset_peak_memory_stats()
    e = timed(step, 5)
    mem = torch.cuda.max_memory_allocated() / 1e6
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out = step()
    print(
        n,
        K,
        S,
        noise,
        "eager %.2f ms, captured %.2f ms, peak %.0f MB" % (e, timed(g.replay), mem),
        flush=True,
    )
A = torch.randn(10, 10000, device="cuda").requires_grad_()
w = torch.zeros(10, device="cuda").requires_grad_()
Y = drpm.AffinityPartition(A, w).sample()
print(
    "log_prob grad n=10000 K=10 %.2f ms"
    % timed(lambda: torch.autograd.grad(drpm.AffinityPartition(A, w).log_prob(Y), (A, w)), 5),
    flush=True,
)
if len(sys.argv) > 1:
    for K in (3, 10):
        step = make(256, K, 100, noise="order")
        f = torch.compile(step)
        import torch._functorch.config

        t = time.perf_counter()
        f()
        torch.cuda.synchronize()
        print("compile K", K, "%.1f s" % (time.perf_counter() - t), flush=True)
        print("compiled %.2f ms" % timed(f), flush=True)
