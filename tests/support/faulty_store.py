"""A store in memory whose operations wait or fail; it is registered as `faulty://`."""

import threading

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyFileSystem(MemoryFileSystem):
    protocol = "faulty"
    error = None  # raised by every operation
    open_gate = threading.Event()  # every operation waits for it
    puts_until_error = None
    store, pseudo_dirs = {}, [""]

    @classmethod
    def reset(cls):
        cls.error, cls.puts_until_error = None, None
        cls.store.clear()
        cls.open_gate.set()

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("faulty://"))

    def answer(self):
        self.open_gate.wait()
        if self.error is not None:
            raise self.error

    def put_file(self, *args, **kwargs):
        self.answer()
        cls = type(self)
        if cls.puts_until_error is not None:
            cls.puts_until_error -= 1
            if cls.puts_until_error < 0:
                raise ConnectionError("no route to the store")
        return super().put_file(*args, **kwargs)

    def pipe_file(self, *args, **kwargs):
        self.answer()
        return super().pipe_file(*args, **kwargs)

    def info(self, *args, **kwargs):
        self.answer()
        return super().info(*args, **kwargs)

    def find(self, *args, **kwargs):
        self.answer()
        return super().find(*args, **kwargs)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
