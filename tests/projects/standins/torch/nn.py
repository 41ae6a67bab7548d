"""Modules with the hooks that sktune registers."""

from collections import OrderedDict


class Parameter:
    """Has a shape and a type, but no values."""

    def __init__(self, *shape):
        self.shape, self.dtype = shape, "torch.float32"
        self.device = type("Device", (), {"type": "cpu"})

    def numel(self):
        count = 1
        for size in self.shape:
            count *= size
        return count


class Handle:
    last = 0

    def __init__(self, hooks, hook):
        Handle.last += 1
        self.hooks, self.id = hooks, Handle.last
        hooks[self.id] = hook

    def remove(self):
        self.hooks.pop(self.id, None)


class Module:
    def __init__(self):
        self.__dict__.update(_modules={}, _parameters={}, _buffers={}, _forward_pre_hooks=OrderedDict(),
                             _forward_hooks=OrderedDict())

    def __setattr__(self, name, value):
        kind = self._modules if isinstance(value, Module) else self._parameters if isinstance(value, Parameter) else None
        if kind is None:
            self.__dict__[name] = value
        else:
            kind[name] = value

    def __getattr__(self, name):
        for kind in ("_modules", "_parameters"):
            if name in self.__dict__[kind]:
                return self.__dict__[kind][name]
        raise AttributeError(name)

    def __call__(self, *arguments, **keywords):
        for hook in list(self._forward_pre_hooks.values()):
            hook(self, arguments)
        output = self.forward(*arguments, **keywords)
        for hook, with_kwargs in list(self._forward_hooks.values()):
            hook(self, arguments, keywords, output) if with_kwargs else hook(self, arguments, output)
        return output

    def register_forward_pre_hook(self, hook):
        return Handle(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook, with_kwargs=False, always_call=False):
        return Handle(self._forward_hooks, (hook, with_kwargs))

    def named_modules(self, seen=None, prefix=""):
        seen = set() if seen is None else seen
        if self not in seen:
            seen.add(self)
            yield prefix, self
            for name, child in self._modules.items():
                yield from child.named_modules(seen, f"{prefix}.{name}" if prefix else name)

    def modules(self):
        return (module for _, module in self.named_modules())

    def parameters(self):
        return (each for module in self.modules() for each in module._parameters.values())


class ModuleList(Module):
    def __init__(self, modules):
        super().__init__()
        self._modules.update({str(index): module for index, module in enumerate(modules)})

    def __iter__(self):
        return iter(self._modules.values())


class Sequential(ModuleList):
    pass
