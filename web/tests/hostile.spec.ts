import { choose, expect, output, result, test, write } from "./belljar";

const MARKUP = `<img src=x onerror=alert(1)><script>alert(2)</script><a href="javascript:alert(3)">x</a>`;

test("output is text, whatever it contains", async ({ console: page }) => {
  const program = `import sys
sys.stdout.write(${JSON.stringify(MARKUP)} + "\\n")
sys.stdout.write("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\x1b[2J\\n")
sys.stdout.write("\\u202egnp.exe\\u202c \\u2066x\\u2069\\n")
sys.stdout.write("a\\rb\\x00\\x08\\x9b\\n")
sys.stderr.write("</pre></section>" + ${JSON.stringify(MARKUP)})
`;
  await write(page, program);
  await page.getByRole("button", { name: "Run" }).click();
  await expect(result(page)).toBeVisible();
  await expect(output(page)).toContainText(MARKUP);
  await expect(output(page)).toContainText("␛[31mred␛[0m ␛]0;title␇ ␛[2J");
  await expect(output(page)).toContainText("⟨U+202E⟩gnp.exe⟨U+202C⟩ ⟨U+2066⟩x⟨U+2069⟩");
  await expect(output(page)).toContainText("a␍b␀␈⟨U+009B⟩");
  const inside = await output(page).evaluate((place) => [...place.querySelectorAll("*")].map((child) => child.tagName));
  expect(new Set(inside)).toEqual(new Set(["SPAN"]));
  expect(await page.title()).toBe("Playground · Belljar");
});

test("names of files are text on one line", async ({ console: page }) => {
  await page.getByText("Files", { exact: true }).click();
  await page.getByLabel("Files to bring back").fill("*");
  await write(page, `import os
for name in ["<img src=x onerror=alert(1)>.png", "a\\nb.txt", "\\u202etxt.exe", "--help", 'x" onload="alert(1)".svg']:
    open(name, "w").write("<svg xmlns='http://www.w3.org/2000/svg' onload='alert(4)'><script>alert(5)</script></svg>")
`);
  await page.getByRole("button", { name: "Run" }).click();
  const files = result(page).getByRole("listitem");
  await expect(files.filter({ hasText: "<img src=x onerror=alert(1)>.png" })).toHaveCount(1);
  await expect(files.filter({ hasText: "a␊b.txt" })).toHaveCount(1);
  await expect(files.filter({ hasText: "⟨U+202E⟩txt.exe" })).toHaveCount(1);
  // Only what is a picture by its content is shown as one, and only in an <img> with an address that holds it.
  await expect(result(page).locator("img")).toHaveCount(1);
  expect(await result(page).locator("img").getAttribute("src")).toMatch(/^data:image\/svg\+xml;base64,/);
  await expect(result(page).locator("svg, script, iframe, object, embed")).toHaveCount(0);
});

test("an SVG runs no script and fetches nothing", async ({ console: page, belljar }) => {
  const fetched: string[] = [];
  page.on("request", (request) => fetched.push(request.url()));
  await write(page, `open("x.svg", "w").write('''<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" onload="alert(1)">
<script>fetch("${belljar.url}/healthz?script")</script><image href="${belljar.url}/healthz?image" width="9" height="9"/>
<foreignObject><iframe src="${belljar.url}/healthz?frame"/></foreignObject></svg>''')
`);
  await page.getByRole("button", { name: "Run" }).click();
  const picture = result(page).getByRole("img");
  await expect.poll(() => picture.evaluate((image: HTMLImageElement) => image.naturalWidth)).toBe(9);
  expect(fetched.filter((url) => url.includes("healthz"))).toEqual([]);
});

test("findings with hostile excerpts are text", async ({ console: page }) => {
  await choose(page, "python");
  await write(page, `import os\nos.system("</li>${MARKUP.replaceAll('"', "'")}\u202e")\n`);
  await expect(page.getByRole("list", { name: "Findings" })).toContainText("python.process");
  await page.locator(".cm-lint-marker").hover();
  await expect(page.locator(".cm-tooltip")).toBeVisible();
  await expect(page.locator(".findings img, .findings script, .cm-tooltip img, .cm-tooltip script")).toHaveCount(0);
});

test("much output does not stop the page", async ({ console: page }) => {
  await write(page, 'print("x" * 99 + "\\n", end="", flush=True)\nprint(("y" * 99 + "\\n") * 40000)\n');
  await page.getByText("Limits, network and backend").click();
  await page.getByRole("button", { name: "Run" }).click();
  await expect(result(page)).toContainText("longer than its limit");
  await expect(output(page)).toContainText("x".repeat(99));
});
