"""Multitask learning with a learned partition of the neurons: python examples/tasks.py.

One task classifies the digit, the other detects zeros. The neurons of the shared layer are divided
between them. The second task is much easier, but either task may get more neurons, depending on
SEED. By default one partition is learned for all images; --per-sample predicts one for every image.
"""

import argparse
from collections.abc import Sequence

import torch
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

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        for_digit, for_zero = self.partition(self.encoder(images), self.context(images))
        return self.digit(for_digit), self.zero(for_zero)

    def context(self, images: Tensor) -> Tensor | None:
        """The input from which partitions are predicted, if they are."""
        return images if self.per_sample else None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a network with two tasks on digits.")
    parser.add_argument(
        "--per-sample", action="store_true", help="predict a partition for every image"
    )
    options = parser.parse_args(arguments)
    torch.manual_seed(SEED)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    zeros = (labels == 0).long()
    order = torch.randperm(len(images))
    train, test = order[:1400], order[1400:]

    model = TwoTasks(options.per_sample)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(EPOCHS):
        model.partition.temperature = 0.5 ** (epoch / EPOCHS)
        for batch in train[torch.randperm(len(train))].split(BATCH):
            digit, zero = model(images[batch])
            losses = (
                functional.cross_entropy(digit, labels[batch]),
                functional.cross_entropy(zero, zeros[batch]),
            )
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            optimizer.step()

    with torch.no_grad():
        found = [logits.argmax(1) for logits in model(images[test])]
    sizes = model.partition.sizes(model.context(images[test])).reshape(-1, 2).mean(0)
    for name, guess, truth, size in zip(
        ("digit", "zero"), found, (labels[test], zeros[test]), sizes, strict=True
    ):
        accuracy = (guess == truth).float().mean()
        print(f"{name:>10}: accuracy {accuracy:.3f} with {size:.0f} of {NEURONS} neurons")


if __name__ == "__main__":
    main()
