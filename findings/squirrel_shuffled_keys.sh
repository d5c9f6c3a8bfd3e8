#!/usr/bin/env bash
# squirrel-core 0.20.2: with shuffled keys the workers of a DataLoader get images twice and leave
# others out.
#
# get_iter(shuffle_key_buffer=..., key_hooks=[SplitByWorker]) shuffles the keys before it splits
# them, and each worker shuffles by a seed of its own, its process number and the time. So each
# takes its part of another order. Of 1,000 images in 100 shards an epoch of 1,000 images holds
# about 750 different ones with two workers, 680 with four and 650 with eight, some three or four
# times. In five epochs with four workers an image comes 0 to 9 times or so.
# stream.shuffle().split_by_worker_pytorch() is the same. Its check, that a stream was split by
# worker before to_torch_iterable, passes. Without workers or without shuffling all is right.
# With key_shuffle_kwargs={"seed": 0} the split is right, but every epoch has one order of shards.
# Another in it: shuffle(rng=random.Random(0)) does not shuffle by that generator. It seeds it anew
# with the process number and the time, so the order is another in each run; with rng=random it is
# Python's own generator that is seeded so, and whatever is drawn later cannot be repeated.
# Way out: a new stream for each epoch with the epoch as the seed, the same in all workers and
# ranks; split first and shuffle afterwards.
#
# torch is taken from $PYTHON if it has both versions below, else installed (5.6 GB).
# Exit status: 0 as described, 1 changed, 2 not installed.  PYTHON=python3.11 chooses the Python.
set -u
packages="aiohttp==3.14.5 fsspec==2026.9.0 mako==1.4.3 more-itertools==11.2.1 msgpack==1.2.4
    msgpack-numpy==0.4.8 oauthlib==4.0.1 pandas==2.3.3 pluggy==1.7.0 pyjwt==2.15.1
    ruamel-yaml==0.19.1 tqdm==4.70.1 torch==2.14.1 torchvision==0.29.1 numpy==2.4.6"
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
"${PYTHON:-python3}" -m venv venv || exit 2
if "${PYTHON:-python3}" - > lent 2> /dev/null <<'END'
from importlib.metadata import distribution, version
assert version("torch").split("+")[0] == "2.14.1"
assert version("torchvision").split("+")[0] == "0.29.1"
print(distribution("torch").locate_file(""))
END
then
    cp lent "$(echo venv/lib/python3*/site-packages)/lent.pth"
else
    echo "Python has not both torch 2.14.1 and torchvision 0.29.1: installing 5.6 GB" >&2
fi
venv/bin/pip install -q --disable-pip-version-check $packages || exit 2
venv/bin/pip install -q --disable-pip-version-check --no-deps squirrel-core==0.20.2 || exit 2
OMP_NUM_THREADS=1 venv/bin/python -W ignore - <<'END'
import random
import sys
from collections import Counter

from squirrel.driver import MessagepackDriver
from squirrel.iterstream import IterableSource
from squirrel.iterstream.torch_composables import SplitByWorker
from squirrel.serialization import MessagepackSerializer
from squirrel.store import SquirrelStore
from torch.utils.data import DataLoader

store = SquirrelStore(url="store", serializer=MessagepackSerializer())
for shard in range(100):
    store.set([{"image": shard * 10 + i} for i in range(10)], key=f"shard{shard:03d}")


def read(workers, **options):
    driver = MessagepackDriver("store")
    stream = driver.get_iter(key_hooks=[SplitByWorker], max_workers=0, **options)
    return loaded(stream.map(lambda item: item["image"]), workers)


def loaded(stream, workers):
    stream = stream.batched(10, drop_last_if_not_full=False).to_torch_iterable()
    return [int(i) for batch in DataLoader(stream, batch_size=None, num_workers=workers)
            for i in batch]


print("1,000 images; different ones in an epoch, and how often an image comes:")
seen = {}
for workers in (0, 2, 4, 8):
    for name, options in (("in order", {}), ("shuffled", {"shuffle_key_buffer": 100}),
                          ("shuffled, a seed", {"shuffle_key_buffer": 100,
                                                "key_shuffle_kwargs": {"seed": 0}})):
        epochs = [read(workers, **options) for _ in range(2)]
        seen[workers, name] = [len(set(epoch)) for epoch in epochs], epochs[0] == epochs[1]
        often = Counter(Counter(epochs[0]).values())
        assert len(epochs[0]) == len(epochs[1]) == 1000
        print(f"{workers} workers, {name}: {seen[workers, name][0]}, {dict(sorted(often.items()))}"
              + (", both epochs in one order" if seen[workers, name][1] else ""))
five = Counter(i for _ in range(5) for i in read(4, shuffle_key_buffer=100))
counts = [five[i] for i in range(1000)]
print(f"5 epochs, 4 workers, shuffled: an image comes {min(counts)} to {max(counts)} times")
items = IterableSource(range(1000)).shuffle(1000).split_by_worker_pytorch()
direct = len(set(loaded(items, 4)))
print(f"shuffle(1000).split_by_worker_pytorch(), 4 workers: {direct} different images")


def order(rng, **seed):
    return list(IterableSource(range(20)).shuffle(20, rng=rng, **seed))


given = [order(random.Random(0)) for _ in range(2)]
seeded = [order(None, seed=0) for _ in range(2)]
later = []
for _ in range(2):
    random.seed(0)
    order(random)
    later.append(random.random())
print(f"rng=random.Random(0): {given[0][:5]}, then {given[1][:5]}; rng=random: random.seed(0) is "
      f"followed by {later[0]:.3f}, then {later[1]:.3f}")
few = {2: (600, 900), 4: (560, 800), 8: (540, 780)}
sys.exit(not (
    all(seen[w, name] == ([1000, 1000], True) for w in (0, 2, 4, 8)
        for name in ("in order", "shuffled, a seed"))
    and seen[0, "shuffled"] == ([1000, 1000], False)
    and all(low < n < high for w, (low, high) in few.items() for n in seen[w, "shuffled"][0])
    and min(counts) < 3 and max(counts) > 7 and 560 < direct < 800
    and given[0] != given[1] and seeded[0] == seeded[1] and later[0] != later[1]))
END
