import { choose, expect, output, result, test, write } from "./belljar";

test("a program runs, and its output comes while it runs", async ({ console: page }) => {
  await write(page, 'import sys\nprint("first", flush=True)\nsys.stdin.readline()\nimport time\nwhile True: time.sleep(1)\n');
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("first");
  await expect(page.getByRole("status")).toContainText("running");
  await page.getByRole("button", { name: "Cancel" }).click();
  await expect(result(page)).toContainText("cancelled");
});

test("a result has its usage and what the box guaranteed", async ({ console: page }) => {
  await write(page, 'import sys\nprint(6*7)\nprint("oops", file=sys.stderr)\nsys.exit(3)\n');
  await page.getByRole("button", { name: "Run" }).click();
  await expect(result(page)).toContainText("exit code 3");
  await expect(output(page).locator(".stdout")).toContainText("42");
  await expect(output(page).locator(".stderr")).toHaveText("oops\n");
  await expect(result(page)).toContainText("CPU time");
  await expect(result(page)).toContainText(/Memory, peak\s*[\d.]+ [KMG]iB/);
  for (const guarantee of ["filesystem", "network", "memory", "pids", "cpu", "disk", "syscalls", "privileges"]) {
    await expect(result(page).getByText(guarantee, { exact: true })).toBeVisible();
  }
});

test("limits are those of the form", async ({ console: page }) => {
  await page.getByText("Limits, network and backend").click();
  await page.getByLabel("Timeout, s").fill("0.5");
  await write(page, "while True: pass\n");
  await page.keyboard.press("Control+Enter");
  await expect(result(page)).toContainText("timed out");
  await expect(result(page)).toContainText("exit code 124");
  await page.getByLabel("Timeout, s").fill("");
  await page.getByLabel("Memory, MiB").fill("64");
  await write(page, "x = bytearray(512 << 20)\nprint(len(x))\n");
  await page.keyboard.press("Control+Enter");
  await expect(result(page)).toContainText("out of memory");
  await expect(result(page)).toContainText("exit code 137");
  await page.getByLabel("Memory, MiB").fill("1024");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("536870912\n");
});

test("a request that is refused says why", async ({ console: page }) => {
  await page.getByText("Limits, network and backend").click();
  await page.getByLabel("Processes").fill("999999");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(page.getByRole("alert")).toContainText("pids");
});

test("standard input, arguments and variables reach the program", async ({ console: page }) => {
  await page.getByText("Input: stdin").click();
  await page.getByLabel("Standard input").fill("line\n");
  await page.getByLabel("Arguments").fill("one\ntwo words");
  await page.getByLabel("Environment").fill("COLOUR=blue=green");
  await write(page, 'import os, sys\nprint(input(), sys.argv[1:], os.environ["COLOUR"])\n');
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("line ['one', 'two words'] blue=green\n");
});

test("files go in, and pictures come back as pictures", async ({ console: page }) => {
  const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"><rect width="40" height="30"/></svg>';
  await page.getByText("Files", { exact: true }).click();
  await page.getByLabel("Files for the working directory").setInputFiles({ name: "in.svg", mimeType: "image/svg+xml", buffer: Buffer.from(svg) });
  await expect(page.getByRole("button", { name: "Remove in.svg" })).toBeVisible();
  await write(page, 'open("out.svg", "w").write(open("in.svg").read())\n');
  await page.getByRole("button", { name: "Run" }).click();
  const picture = page.getByRole("img", { name: "Picture out.svg" });
  await expect(picture).toBeVisible();
  await expect.poll(() => picture.evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(40);
  const download = page.waitForEvent("download");
  await page.getByRole("button", { name: "Download out.svg" }).click();
  expect((await download).suggestedFilename()).toBe("out.svg");
});

test("another language brings its own example, and does not replace what somebody wrote", async ({ console: page }) => {
  await choose(page, "bash");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toContainText("Hello from 5");
  await write(page, "echo mine");
  await choose(page, "sh");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("mine\n");
});

test("findings of a scan are in the gutter and in a list", async ({ console: page }) => {
  await write(page, 'import os\nos.system("id")\n');
  const list = page.getByRole("list", { name: "Findings" });
  await expect(list).toContainText("python.process");
  await expect(list).toContainText("line 2");
  await expect(page.locator(".cm-lint-marker")).toHaveCount(1);
  await write(page, "print(1)\n");
  await expect(list).toHaveCount(0);
  await expect(page.locator(".cm-lint-marker")).toHaveCount(0);
});

test("the code survives a reload", async ({ console: page }) => {
  await write(page, "print('kept')\n");
  await expect(page.getByRole("textbox", { name: "Code" })).toContainText("kept");
  await page.reload();
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("kept\n");
});
