import { violations } from "./axe";
import { expect, output, result, test, write } from "./belljar";

test.use({
  config: `[approvals]
allow-own = true
[policy]
rules = [
  { when = { rule = "python.process.*" }, then = "approve" },
  { when = { language = "ruby" }, then = "deny" },
]
`,
});

for (const [decision, ending] of [["Approve", "exit code 0"], ["Deny", "denied"]] as const) {
  test(`a run waits for somebody, who decides: ${decision}`, async ({ console: page, context, belljar }) => {
    const code = `import os\nos.system("echo '<b>${decision}</b>'")\n`;
    await write(page, code);
    await page.getByRole("button", { name: "Run" }).click();
    await expect(page.getByRole("status")).toContainText("awaiting approval");

    const decider = await context.newPage();
    await decider.goto(`${belljar.url}/#/approvals`);
    await decider.getByRole("row").filter({ hasText: `<b>${decision}</b>` }).getByRole("link").click();
    await expect(decider.getByRole("textbox", { name: "Code" })).toContainText("os.system");
    await expect(decider.getByRole("list", { name: "Findings" })).toContainText("python.process");
    await expect(decider.locator(".cm-lint-marker")).toHaveCount(1);
    await decider.getByLabel("Reason").fill("seen <i>it</i>");
    await decider.getByRole("button", { name: decision }).click();
    await expect(decider.getByRole("status")).toContainText(decision === "Approve" ? "approved" : "denied");
    await expect(decider.getByRole("button", { name: decision })).toHaveCount(0);

    await expect(result(page)).toContainText(ending);
    await expect(output(page)).toContainText(decision === "Approve" ? "<b>Approve</b>" : "Denied");
    await expect(page.locator("main b, main i")).toHaveCount(0);
  });
}

test("a finding is shown on the file that it is in, and a remembered decision can be revoked", async ({ console: page, belljar }) => {
  const run = () =>
    page.evaluate(async () => {
      const files = [
        { path: "notes.txt", content: "plain <b>text</b>" },
        { path: "helper.py", content: "import os\nos.system('true')\n" },
      ];
      const body = JSON.stringify({ language: "python", code: "import helper\nprint(input())\n", stdin: "typed", files });
      const headers = { "content-type": "application/json", prefer: "respond-async" };
      return (await (await fetch("/v1/runs", { method: "POST", headers, body })).json()) as { approval_id?: string };
    });
  const { approval_id: id } = await run();
  await page.goto(`${belljar.url}/#/approvals`);
  await expect(page.getByRole("table")).toBeVisible();
  for (const colours of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme: colours, reducedMotion: "reduce" });
    expect(await violations(page), `the approvals, ${colours}`).toEqual([]);
  }
  await page.goto(`${belljar.url}/#/approvals/${id}`);
  const part = (name: string) => page.getByRole("region", { name });
  await expect(part("helper.py").locator(".cm-lint-marker")).toHaveCount(1);
  await expect(page.locator(".cm-lint-marker")).toHaveCount(1);
  await expect(part("notes.txt")).toContainText("plain <b>text</b>");
  await expect(part("standard input")).toContainText("typed");
  for (const colours of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme: colours, reducedMotion: "reduce" });
    expect(await violations(page), `an approval, ${colours}`).toEqual([]);
  }
  await page.getByLabel("Remember").selectOption("for an hour");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("button", { name: "Revoke" }).click();
  await expect(page.getByRole("button", { name: "Revoke" })).toHaveCount(0);
  await expect(page.getByText("revoked by")).toBeVisible();
  const again = await run();
  expect(again.approval_id).toBeTruthy();
  expect(again.approval_id).not.toBe(id);
});

test("what the policy denies says which rule did", async ({ console: page }) => {
  await page.getByLabel("Language").selectOption("ruby");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(result(page)).toContainText("denied");
  await expect(result(page)).toContainText("exit code 126");
  await expect(result(page)).toContainText("by policy");
});
