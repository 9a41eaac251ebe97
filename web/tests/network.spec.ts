// What is tried here is refused before anything leaves the host.
import { choose, expect, result, test, write } from "./belljar";

test.use({ config: '[audit]\nenabled = true\n[server.allow]\nnetwork = "full"\n' });

/** Tries to reach what no network has, then waits for its end. The name is the program's own. */
const PROGRAM = `import socket, sys, time
def attempt(host, port):
    try: socket.create_connection((host, port), 20)
    except OSError as fault: print(type(fault).__name__, flush=True)
attempt("10.0.0.1", 80)
name = b"<img src=x onerror=alert(1)>\\x1b[31m"
question = b"\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + bytes([len(name)]) + name + b"\\0\\0\\1\\0\\1"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("192.0.2.1", 53))
s.send(question)
s.recv(512)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0): time.sleep(1)
`;

test("connections are shown while the program runs, and afterwards", async ({ console: page, belljar }) => {
  await page.getByText("Limits, network and backend").click();
  await page.getByLabel("Timeout, s").fill("900");
  await page.getByLabel("Network").selectOption("some hosts");
  await page.getByLabel("Hosts, as name:port").fill("example.org:443, *.example.net");
  await page.getByText("Input: stdin").click();
  await page.getByLabel("Arguments").fill("900");
  await write(page, PROGRAM);
  await page.getByRole("button", { name: "Run" }).click();
  const table = page.getByRole("region", { name: "Connections, a table" });
  const refused = table.getByRole("row").filter({ hasText: "10.0.0.1" });
  await expect(refused).toContainText("80");
  await expect(refused).toContainText("refused a private address");
  await expect(table).toContainText("<img src=x onerror=alert(1)>?[31m");
  await expect(table.locator("img")).toHaveCount(0);
  await expect(page.getByRole("status")).toContainText("running");
  const id = await page.getByRole("status").locator("code").textContent();

  // Whoever comes later sees it from the start.
  const late = await page.context().newPage();
  await late.goto(`${belljar.url}/#/runs/${id}`);
  await expect(late.getByRole("region", { name: "Connections, a table" })).toContainText("10.0.0.1");
  await late.close();

  await page.getByRole("button", { name: "Cancel" }).click();
  const denied = result(page).getByRole("region", { name: "Refused by the network" });
  await expect(denied).toContainText("10.0.0.1, port 80: a private address");
  await expect(result(page)).toContainText("allow:example.org:443,*.example.net");
  await expect(result(page)).toContainText(/Sent over the network\s*0 B/);

  await page.goto(`${belljar.url}/#/audit/${id}`);
  await expect(page.getByRole("region", { name: "Refused by the network" })).toContainText("10.0.0.1, port 80: a private address");
});

test("a program without a network has no connections to show", async ({ console: page }) => {
  await choose(page, "sh");
  await write(page, "echo done\n");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(result(page)).toContainText("exit code 0");
  await expect(page.getByText("Connections")).toHaveCount(0);
  await expect(page.getByText("Sent over the network")).toHaveCount(0);
});
