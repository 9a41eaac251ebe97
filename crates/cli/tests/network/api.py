"""An HTTPS server of the tests' internet: answers every request with what it was, as JSON.

Values of the headers that secrets go into are told as their SHA-256, because what the box gets of them is looked for.
usage: api.py DIRECTORY, with ADDRESS PORT CERTIFICATE in each line of DIRECTORY/listen; prints "ready"
"""
import hashlib, json, socket, ssl, sys, threading

SECRET = ("authorization", "x-api-key")


def answer(stream):
    source = stream.makefile("rb")
    while line := source.readline():
        method, path, version = line.decode().split()
        headers = []
        while (line := source.readline().decode().strip()):
            name, _, value = line.partition(":")
            headers.append((name, value.strip()))
        body = read_body(source, {name.lower(): value for name, value in headers})
        secrets = [[name, hashlib.sha256(value.encode()).hexdigest()] for name, value in headers if name.lower() in SECRET]
        hosts = [value for name, value in headers if name.lower() == "host"]
        length = int(path.split("/")[2]) if path.startswith("/bytes/") else 0
        shown = {"method": method, "path": path, "version": version, "hosts": hosts, "secrets": secrets, "body": body[:100]}
        shown["length"], shown["filling"] = len(body), "x" * length
        values = [value for name, value in headers if name.lower() in SECRET]
        text = json.dumps(shown) if path != "/echo" else "you sent " + " ".join(values)
        echo = "".join("X-Echo: %s\r\n" % value for value in values) if path == "/echo" else ""
        stream.sendall(("HTTP/1.1 200 OK\r\n%sContent-Length: %d\r\n\r\n%s" % (echo, len(text), text)).encode())
        if version == "HTTP/1.0" or path == "/close":
            break
    stream.unwrap()


def read_body(source, headers):
    if headers.get("transfer-encoding") != "chunked":
        return source.read(int(headers.get("content-length", 0))).decode()
    body = b""
    while size := int(source.readline(), 16):
        body += source.read(size)
        source.readline()
    source.readline()
    return body.decode()


def serve(listener, context):
    while True:
        stream, _ = listener.accept()
        threading.Thread(target=attend, args=(stream, context), daemon=True).start()


def attend(stream, context):
    try:
        answer(context.wrap_socket(stream, server_side=True))
    except (OSError, ValueError):
        pass
    stream.close()


directory = sys.argv[1]
for line in open(directory + "/listen"):
    address, port, certificate = line.split()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{directory}/{certificate}.pem", f"{directory}/{certificate}.key")
    listener = socket.create_server((address, int(port)))
    threading.Thread(target=serve, args=(listener, context), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
