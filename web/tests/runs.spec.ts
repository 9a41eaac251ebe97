import { expect, output, result, test, write } from "./belljar";

test("a run shows up, can be followed from its start, and cancelled", async ({ console: page, belljar }) => {
  const body = { language: "bash", code: "echo early; for i in $(seq 1000); do echo tick; sleep 1; done", limits: { timeout_ms: 600_000 } };
  const accepted = await page.request.post(`${belljar.url}/v1/runs`, { data: body, headers: { prefer: "respond-async" } });
  const { id } = (await accepted.json()) as { id: string };
  await page.getByRole("link", { name: "Runs" }).click();
  const row = page.getByRole("row").filter({ hasText: id });
  await expect(row).toContainText("running");
  await page.getByRole("link", { name: id }).click();
  await expect(output(page)).toContainText("early\ntick");
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(result(page)).toContainText("cancelled");
  await page.getByRole("link", { name: "All runs" }).click();
  await expect(row).toContainText("cancelled");
  await expect(row.getByRole("button")).toHaveCount(0);
});

test("a run is cancelled from the list", async ({ console: page, belljar }) => {
  const body = { language: "bash", code: "sleep 1000", limits: { timeout_ms: 600_000 } };
  const accepted = await page.request.post(`${belljar.url}/v1/runs`, { data: body, headers: { prefer: "respond-async" } });
  const { id } = (await accepted.json()) as { id: string };
  await page.goto(`${belljar.url}/#/runs`);
  await page.getByRole("button", { name: `Cancel ${id}` }).click();
  await expect(page.getByRole("row").filter({ hasText: id })).toContainText("cancelled");
});

test("whoever closes the page cancels the run", async ({ console: page, belljar, context }) => {
  await write(page, "import time\nprint('started', flush=True)\ntime.sleep(1000)\n");
  await page.getByText("Limits, network and backend").click();
  await page.getByLabel("Timeout, s").fill("900");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("started\n");
  const id = await page.getByRole("status").locator("code").textContent();
  await page.goto("about:blank");
  const other = await context.newPage();
  await other.goto(`${belljar.url}/#/runs`);
  await expect(other.getByRole("row").filter({ hasText: id! })).toContainText("cancelled");
});

test("runs are filtered by their status", async ({ console: page, belljar }) => {
  const run = (code: string) => page.request.post(`${belljar.url}/v1/runs`, { data: { language: "sh", code, limits: { timeout_ms: 300 } } });
  const ended = ((await (await run("exit 0")).json()) as { id: string }).id;
  const late = ((await (await run("sleep 60")).json()) as { id: string }).id;
  await page.goto(`${belljar.url}/#/runs`);
  await expect(page.getByText(ended)).toBeVisible();
  await page.getByLabel("Status").selectOption("timed_out");
  await expect(page.getByText(ended)).toHaveCount(0);
  await expect(page.getByText(late)).toBeVisible();
});
