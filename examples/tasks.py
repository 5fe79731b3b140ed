"""Multitask learning with a learned partition of the neurons: python examples/tasks.py.

One task classifies the digit, the other detects zeros. The neurons of the shared layer are divided
between them; either task may get more of them, depending on SEED. By default one partition is
learned for all images; --per-sample predicts one for every image.
"""

import sys

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from drpm.nn import TaskPartition

NEURONS, EPOCHS, BATCH, SEED = 32, 60, 128, 0


class TwoTasks(nn.Module):
    def __init__(self, per_sample: bool) -> None:
        super().__init__()
        self.per_sample = per_sample
        self.encoder = nn.Sequential(nn.Linear(64, NEURONS), nn.ReLU())
        self.partition = TaskPartition(NEURONS, num_tasks=2, in_features=64 if per_sample else None)
        self.digit, self.zero = nn.Linear(NEURONS, 10), nn.Linear(NEURONS, 2)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        context = images if self.per_sample else None  # from which partitions are predicted
        split = self.partition.split(self.encoder(images), context)
        for_digit, for_zero = split.features
        return self.digit(for_digit), self.zero(for_zero), split.masks.mean(1)


def draw(per_sample: bool = False) -> Figure:
    torch.manual_seed(SEED)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    zeros = (labels == 0).long()
    order = torch.randperm(len(images))
    train, test = order[:1400], order[1400:]
    model = TwoTasks(per_sample)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    sizes = []
    for epoch in range(EPOCHS):
        model.partition.temperature = 0.5 ** (epoch / EPOCHS)
        for batch in train[torch.randperm(len(train))].split(BATCH):
            digit, zero, masks = model(images[batch])
            loss = functional.cross_entropy(digit, labels[batch])
            loss = (loss + functional.cross_entropy(zero, zeros[batch])) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sizes.append(masks.detach().sum(1))

    with torch.no_grad():
        digit, zero, masks = model(images[test])
    figure, axes = plt.subplots(2, figsize=(5, 4.5), height_ratios=(3, 1), layout="constrained")
    axes[0].plot(torch.stack(sizes).numpy(), label=["digit", "zero"])
    axes[0].set(xlabel="epoch", ylabel="neurons")
    axes[0].legend()
    found = masks[:, masks[0].argsort(descending=True)].numpy()
    axes[1].imshow(found, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes[1].set(yticks=[0, 1], yticklabels=["digit", "zero"], xlabel="neuron, sorted")
    pairs = (("digit", digit, labels), ("zero", zero, zeros))
    for (name, logits, truth), size in zip(pairs, masks.sum(1), strict=True):
        accuracy = (logits.argmax(1) == truth[test]).float().mean()
        print(f"{name:>10}: accuracy {accuracy:.3f} with {size:.0f} of {NEURONS} neurons")
    return figure


if __name__ == "__main__":
    draw("--per-sample" in sys.argv).savefig("tasks.png")
