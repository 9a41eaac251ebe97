"""What the checks of the docker backend share: belljar, the daemon that it is to use, and a server whose runs go there.

Every script that uses it is called with PATH/TO/belljar FOLDER-OF-THE-DAEMON.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

BELLJAR, FOLDER = sys.argv[1], sys.argv[2]
HERE = os.path.dirname(os.path.abspath(__file__))
OWNER = "dev.belljar.owner"


def environment(folder):
    """For a belljar, or a docker, that is to use the daemon of this folder; with a memory of its own."""
    return {**os.environ, "DOCKER_HOST": f"unix://{folder}/docker.sock", "BELLJAR_STATE_DIR": tempfile.mkdtemp()}


ENVIRONMENT = environment(FOLDER)


def start(code, *options, language="sh", env=ENVIRONMENT):
    words = [BELLJAR, "run", language, "-c", code, "--backend", "docker", "--json", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=env, stdout=pipe, stderr=pipe, text=True, preexec_fn=hear_interrupts)


def hear_interrupts():
    """Who was started in the background by a shell does not, unless told to."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(run, patience=120):
    out, err = run.communicate(timeout=patience)
    assert out, f"no answer: {err}"
    return json.loads(out)


def docker(*words, env=ENVIRONMENT):
    done = subprocess.run(["docker", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
    return done.stdout


def containers(env=ENVIRONMENT):
    return docker("ps", "-aq", "--filter", f"label={OWNER}", env=env).split()


def wait_until(what, condition, patience=60):
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.1)


def daemon_pid():
    with open(f"{FOLDER}/pid") as file:
        return int(file.read())


def start_daemon(folder=FOLDER):
    subprocess.run([f"{HERE}/daemon", "start", folder], check=True, stdout=subprocess.DEVNULL)


def stop_daemon(folder=FOLDER):
    subprocess.run([f"{HERE}/daemon", "stop", folder], check=True)


def server(config, env=ENVIRONMENT):
    """A server whose runs go to Docker; and where it listens."""
    home = tempfile.mkdtemp()
    with open(f"{home}/belljar.toml", "w") as file:
        file.write(f'backend = "docker"\n{config}')
    log = open(f"{home}/log", "w+")
    words = [BELLJAR, "serve", "--listen", "127.0.0.1:0", "--config", "belljar.toml"]
    process = subprocess.Popen(words, cwd=home, env=env, stderr=log, stdout=subprocess.DEVNULL)

    def listens():
        with open(f"{home}/log") as text:
            return [line.split()[-1] for line in text if line.startswith("listening on ")]

    wait_until("the server listens", listens)
    return process, listens()[0]


def ask(url, path, body=None, accept="application/json"):
    """The answer's status and its text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json", "accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def small_image(name, env=ENVIRONMENT):
    """An image with a shell in it and little else."""
    folder = tempfile.mkdtemp()
    os.mkdir(f"{folder}/bin")
    subprocess.run(["cp", "/bin/busybox", f"{folder}/bin/sh"], check=True)
    for applet in ("echo", "sleep", "true", "cat"):
        os.symlink("sh", f"{folder}/bin/{applet}")
    archive = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["docker", "import", "-", name], env=env, check=True, input=archive, stdout=subprocess.DEVNULL)


def hold(*checks):
    for check in checks:
        began = time.monotonic()
        check()
        print(f"{check.__name__.replace('_', ' ')}: {time.monotonic() - began:.0f} s", flush=True)
