"""The program with a fault planted in it, for tests that start it:
`python planted.py FAULT[,FAULT...] ARGUMENTS`.

A fault says on stderr when it has come to act (`planted: ...`), so that a test can wait for it.

    data_wait=N          batches from step N on never come; says `planted: waits` too, when training
                         waits for the first
    data_slow=S          every batch takes S seconds
    heldout_wait         the second batch of an evaluation never comes
    heldout_slow=S       every batch of an evaluation takes S seconds
    compile_wait=S       compiling the step takes about S seconds more, in which no handler runs
    oom                  the device has no memory for the step
    full=S               from the second save on no file can have more than 1000 bytes, for S
                         seconds
    damaged=N            the checkpoint of step N cannot be read
    step_slow=S          before every dispatch the loop takes S seconds
    read=FOLDER          no fault: the batches of every dispatch are kept there, pickled, as they
                         are on the device of this process; STEP.ROW are the first of them
    only=P               faults in process P alone
"""

import hashlib
import os
import pickle
import resource
import sys
import threading
import time


def main() -> None:
    faults = dict(word.partition("=")[::2] for word in sys.argv[1].split(",") if word)
    del sys.argv[1]
    if "only" in faults and f"--config.distributed.process_id={faults['only']}" not in sys.argv:
        faults = {}
    import jax

    from xlnet_jax.checkpoint import store
    from xlnet_jax.data.batches import loader
    from xlnet_jax.train import loop

    def told(what: str) -> None:
        print(f"planted: {what}", file=sys.stderr, flush=True)

    train, heldout, compile_step = (
        loader.TrainDispatches.__call__,
        loader.HeldoutDispatches.__call__,
        loop.compile_step,
    )

    def train_batch(self, index):
        if "data_wait" in faults and self.steps(index)[0] >= int(faults["data_wait"]):
            told("data_wait")
            time.sleep(1e6)
        time.sleep(float(faults.get("data_slow", 0)))
        return train(self, index)

    def heldout_batch(self, index):
        if "heldout_wait" in faults and index:
            told("heldout_wait")
            time.sleep(1e6)
        if "heldout_slow" in faults and index:
            told("heldout_slow")
            time.sleep(float(faults["heldout_slow"]))
        return heldout(self, index)

    def compiled(*arguments):
        if "compile_wait" in faults:
            told("compile_wait")
            # One call into a library, in which Python's lock is free and its signal handlers do not
            # run: a compiler.
            hashlib.pbkdf2_hmac("sha256", b"", b"", int(1e6 * float(faults["compile_wait"])))
        if "oom" in faults:
            raise jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."
            )
        return compile_step(*arguments)

    next_batch, save = loop.Run._next, store.Checkpoints.save

    def waits(self, batches, at, state):
        if "data_wait" in faults and at >= int(faults["data_wait"]):
            told("waits")
        time.sleep(float(faults.get("step_slow", 0)))
        batch = next_batch(self, batches, at, state)
        if "read" in faults:
            first_row = batch.tokens.addressable_shards[0].index[1].start or 0
            path = f"{faults['read']}/{at}.{first_row}"
            with open(f"{path}.part", "wb") as file:
                pickle.dump(
                    jax.tree.map(lambda x: jax.device_get(x.addressable_data(0)), batch), file
                )
            os.replace(f"{path}.part", path)
        return batch

    def full(self, step, *arguments):
        if "full" in faults:
            self.wait()  # or the first save may not be there yet
        if "full" in faults and self.steps():
            seconds = float(faults.pop("full"))
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
            threading.Timer(
                seconds, resource.setrlimit, (resource.RLIMIT_FSIZE, (most, most))
            ).start()
            told("full")
        return save(self, step, *arguments)

    record = store.Checkpoints.record

    def damaged(self, step):
        if step == int(faults.get("damaged", -1)):
            raise store.Damaged(f"{step} is damaged: planted")
        return record(self, step)

    store.Checkpoints.save, store.Checkpoints.record = full, damaged
    loader.TrainDispatches.__call__ = train_batch
    loader.HeldoutDispatches.__call__ = heldout_batch
    loop.compile_step = compiled
    loop.Run._next = waits
    from xlnet_jax.cli import program

    program()


if __name__ == "__main__":
    # Grain's workers and others that start this file anew shall find the package.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    main()
