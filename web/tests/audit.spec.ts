import { expect, test } from "./belljar";

async function run(page: import("@playwright/test").Page, url: string, code: string, language = "python"): Promise<void> {
  const answer = await page.request.post(`${url}/v1/runs`, { data: { language, code } });
  expect(answer.ok()).toBe(true);
}

test("the audit log is searched and filtered, and its chain is checked", async ({ console: page, belljar }) => {
  await run(page, belljar.url, "print('needle')");
  await run(page, belljar.url, "print('hay')");
  await run(page, belljar.url, "echo needle in a shell", "sh");
  const rows = page.getByRole("table").locator("tbody tr");
  // Records are written in the background, so that the search is repeated until they are there.
  await expect(async () => {
    await page.goto(`${belljar.url}/#/audit`);
    await page.reload();
    await page.getByRole("searchbox").fill("needle");
    await page.keyboard.press("Enter");
    await expect(rows).toHaveCount(2, { timeout: 2000 });
  }).toPass();
  await expect(rows.first()).toContainText("needle in a shell");
  await page.getByLabel("Language").fill("python");
  await page.getByRole("button", { name: "Search" }).click();
  await expect(rows).toHaveCount(1);
  await expect(rows).toContainText("print('needle')");
  await expect(page.getByRole("status")).toContainText("whole");
  await rows.getByRole("link").click();
  await expect(page.getByRole("textbox", { name: "Code" })).toContainText("print('needle')");
  await expect(page.getByRole("region", { name: "Standard output" })).toHaveText("needle\n");
  await expect(page.getByText("anonymous")).toBeVisible();
});

test("a filter that is not valid says so", async ({ console: page, belljar }) => {
  await page.goto(`${belljar.url}/#/audit`);
  await page.getByLabel("From").fill("yesterday-ish");
  await page.getByRole("button", { name: "Search" }).click();
  await expect(page.getByRole("alert")).toContainText("from");
});

test("what the log has of hostile programs is text", async ({ console: page, belljar }) => {
  await run(page, belljar.url, 'print("<img src=x onerror=alert(1)> \\u202e \\x1b[2J")  # <script>alert(2)</script> hostile \u202e');
  await expect(async () => {
    await page.goto(`${belljar.url}/#/audit`);
    await page.reload();
    await page.getByRole("searchbox").fill("hostile");
    await page.keyboard.press("Enter");
    await expect(page.locator("tbody tr")).toHaveCount(1, { timeout: 2000 });
  }).toPass();
  await expect(page.locator("tbody pre")).toContainText("<script>alert(2)</script> hostile ⟨U+202E⟩");
  await page.locator("tbody").getByRole("link").click();
  await expect(page.getByRole("region", { name: "Standard output" })).toHaveText("<img src=x onerror=alert(1)> ⟨U+202E⟩ ␛[2J\n");
  await expect(page.locator("main img:not(.cm-widgetBuffer), main script")).toHaveCount(0);
});

test("languages and guarantees of the host are listed", async ({ console: page, belljar }) => {
  await page.goto(`${belljar.url}/#/host`);
  const python = page.getByRole("rowheader", { name: "python", exact: true });
  await expect(page.getByRole("row").filter({ has: python })).toContainText("CPython");
  const native = page.getByRole("region", { name: "native" });
  await expect(native).toContainText("ready");
  await native.getByText("Guarantees").click();
  await expect(native.getByText("syscalls", { exact: true })).toBeVisible();
});

test("the charts show runs as they end", async ({ console: page, belljar }) => {
  await page.goto(`${belljar.url}/#/load`);
  const duration = page.getByRole("region", { name: "Duration of runs" });
  await expect(duration.locator("canvas")).toBeVisible();
  await expect(async () => {
    await run(page, belljar.url, "print(1)");
    await expect(duration).toContainText(/median [\d.]+ ms/, { timeout: 4000 });
  }).toPass();
  await expect(page.getByRole("table")).toContainText("python");
});
