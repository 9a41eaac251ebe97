import { violations } from "./axe";
import { expect, output, result, test, write } from "./belljar";

const PAGES = ["playground", "runs", "load", "audit", "host"];

for (const colours of ["light", "dark"] as const) {
  test(`axe finds nothing on any page, in ${colours}`, async ({ console: page, belljar }) => {
    await page.emulateMedia({ colorScheme: colours, reducedMotion: "reduce" });
    await write(page, 'import os, sys\nprint("out")\nprint("err", file=sys.stderr)\nos.system("true")\nopen("a.txt", "w").write("x")\n');
    await page.getByRole("button", { name: "Run" }).click();
    await expect(result(page)).toContainText("a.txt");
    await expect(page.getByRole("list", { name: "Findings" })).toBeVisible();
    for (const summary of await page.locator("summary").all()) await summary.click();
    expect(await violations(page)).toEqual([]);
    for (const name of PAGES.slice(1)) {
      await page.goto(`${belljar.url}/#/${name}`);
      await expect(page.getByRole("heading", { level: 2 })).toBeVisible();
      await expect(page.getByRole("table").or(page.getByText("no such runs"))).toBeVisible();
      expect(await violations(page), name).toEqual([]);
    }
    await page.keyboard.press("?");
    await expect(page.getByRole("dialog")).toBeVisible();
    expect(await violations(page), "help").toEqual([]);
  });
}

test("the colours follow the button, and stay after a reload", async ({ console: page }) => {
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: "light" });
  const light = await background();
  await page.getByRole("button", { name: "Colours: system" }).click();
  await page.getByRole("button", { name: "Colours: light" }).click();
  await expect(page.getByRole("button", { name: "Colours: dark" })).toBeVisible();
  const dark = await background();
  expect(dark).not.toBe(light);
  await page.reload();
  await expect(page.getByRole("button", { name: "Colours: dark" })).toBeVisible();
  expect(await background()).toBe(dark);
});

test("everything works with the keyboard alone", async ({ console: page }) => {
  await expect(page.getByRole("textbox", { name: "Code" })).toBeVisible();
  await expect(page.getByLabel("Language")).toContainText("bash");
  await page.keyboard.press("Tab");
  await expect(page.getByRole("link", { name: "Skip to the page" })).toBeFocused();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Tab");
  await expect(page.getByLabel("Language")).toBeFocused();
  await page.keyboard.type("ba");
  await page.keyboard.press("Tab");
  await expect(page.getByRole("button", { name: "Run" })).toBeFocused();
  await page.keyboard.press("Tab");
  const editor = page.getByRole("textbox", { name: "Code" });
  await expect(editor).toBeFocused();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("sleep 1000");
  await page.keyboard.press("Control+Enter");
  await expect(page.getByRole("status")).toContainText("running");
  await page.keyboard.press("Control+.");
  await expect(result(page)).toContainText("cancelled");
  await page.keyboard.press("Control+a");
  await page.keyboard.type("echo typed");
  await page.keyboard.press("Control+Enter");
  await expect(output(page)).toHaveText("typed\n");
  // Tab indents in the editor; Esc and Tab leave it.
  await page.keyboard.press("Escape");
  await page.keyboard.press("Tab");
  await expect(editor).not.toBeFocused();
  for (const [keys, title] of [["gr", "Runs"], ["gl", "Load"], ["gu", "Audit log"], ["gh", "Languages and host"]] as const) {
    await page.keyboard.type(keys);
    await expect(page.getByRole("heading", { level: 2, name: title })).toBeVisible();
  }
  await page.keyboard.type("gu");
  await expect(page.getByRole("searchbox")).toBeVisible();
  await page.keyboard.press("/");
  await expect(page.getByRole("searchbox")).toBeFocused();
  await page.keyboard.type("gr?");
  await expect(page.getByRole("heading", { level: 2, name: "Audit log" })).toBeVisible();
  await page.keyboard.press("Escape");
  await page.getByRole("searchbox").blur();
  await page.keyboard.press("?");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(page.getByRole("dialog")).toBeHidden();
});

test("every page fits a phone", async ({ console: page, belljar }) => {
  await page.setViewportSize({ width: 360, height: 640 });
  for (const name of PAGES) {
    await page.goto(`${belljar.url}/#/${name}`);
    await expect(page.getByRole("main")).not.toBeEmpty();
    const { inner, content } = await page.evaluate(() => ({ inner: innerWidth, content: document.documentElement.scrollWidth }));
    expect(content, name).toBeLessThanOrEqual(inner);
  }
  await page.goto(`${belljar.url}/#/playground`);
  await write(page, "print('small')\n");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("small\n");
  await expect(output(page)).toBeInViewport();
});
