"""A torch.distributed job for sluice: saved, shrunk and resumed without losing a step.

Runs under torchrun, on GPUs (nccl) or without (gloo). Needs nodes/rank/sluice.py
beside it. The global batch and the order of samples are the same at every world
size: each step takes the samples of its number, and each rank every world-th.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sluice

STEPS = int(os.environ.get("STEPS", "1000"))
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "100"))
GLOBAL_BATCH = 64
FEATURES = 32


def samples_of(step, device):
    """Made-up data, the same for a step whenever it is run."""
    made = torch.Generator().manual_seed(step)
    x = torch.randn(GLOBAL_BATCH, FEATURES, generator=made)
    return x.to(device), x.sum(dim=1, keepdim=True).to(device)


def save(gang, rank, model, optimizer, step):
    """Write this rank's shard: to the side, to the disk, then in place."""
    path = os.path.join(gang.checkpoint_dir, "step-%d-rank-%d.pt" % (step, rank))
    # All ranks hold the same model, so rank 0's shard has it; the others say
    # that they are there.
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()} if rank == 0 else {"step": step}
    with open(path + ".new", "wb") as f:
        torch.save(state, f)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".new", path)
    return path


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    gang = sluice.attach()
    if gang.manifest:
        state = torch.load(dict(gang.shards())[0], map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print("rank %d of %d resumes after step %d" % (rank, world, gang.step), flush=True)
    parallel = DistributedDataParallel(model, device_ids=[device] if cuda else None)

    for step in gang.steps(last=STEPS):
        x, y = samples_of(step, device)
        # The sum over this rank's part, scaled so that the mean over ranks,
        # which DistributedDataParallel takes, is the mean over the whole batch.
        part = ((parallel(x[rank::world]) - y[rank::world]) ** 2).sum()
        loss = part * world / GLOBAL_BATCH
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gang.report(loss=loss.item(), samples=GLOBAL_BATCH)
        if gang.should_save(every=SAVE_EVERY):
            gang.saved(save(gang, rank, model, optimizer, step))

    print("rank %d of %d finished at step %d" % (rank, world, gang.step), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
