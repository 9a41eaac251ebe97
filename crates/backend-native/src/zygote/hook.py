

def _become_zygote(path):
    if path != "/sandbox/main.py":
        raise ImportError
    with open("/sandbox/.zygote", "rb") as file:
        script = file.read()
    exec(compile(script, "/sandbox/.zygote", "exec"), {"__name__": "zygote"})


__import__("sys").path_hooks.insert(0, _become_zygote)
del _become_zygote
