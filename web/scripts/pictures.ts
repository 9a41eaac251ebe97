// Screenshots of a real server, for the documentation: node scripts/pictures.ts FOLDER
import { join } from "node:path";

import { chromium, type Page } from "@playwright/test";

import { serve, stop } from "../tests/server.ts";

const PLOT = `import random

random.seed(7)
price, points = 100.0, []
for day in range(120):
    price += random.gauss(0.15, 1.2)
    points.append(f"{day * 4},{200 - price:.1f}")

print("last price", round(price, 1))
open("walk.svg", "w").write(f"""
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 480 200">
  <polyline points="{' '.join(points)} 480,200 0,200"
      fill="#bfdbfe" stroke="#1d4ed8" stroke-width="2"/>
</svg>""")
`;

async function paste(page: Page, code: string): Promise<void> {
  const editor = page.getByRole("textbox", { name: "Code" });
  await editor.click();
  await page.keyboard.press("Control+a");
  await editor.evaluate((place, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    place.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }));
  }, code);
}

const folder = process.argv[2];
if (!folder) throw new Error("usage: node scripts/pictures.ts FOLDER");
const server = await serve("[audit]\nenabled = true\n");
const browser = await chromium.launch({ executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
  await take(await browser.newPage({ viewport: { width: 1200, height: 760 }, colorScheme: "dark" }), server.url, folder);
} finally {
  await browser.close();
  await stop(server);
}

async function take(page: Page, url: string, into: string): Promise<void> {
  const run = (code: string, language = "python") => page.request.post(`${url}/v1/runs`, { data: { language, code } });
  await page.goto(url);
  await paste(page, PLOT);
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("img", { name: /^Picture/ }).waitFor();
  await page.screenshot({ path: join(into, "console-playground.png") });

  await page.goto(`${url}/#/load`);
  for (let round = 0; round < 12; round += 1) {
    await Promise.all(["print(1)", "sum(range(10**6))", "import json"].map((code) => run(code)));
    await page.waitForTimeout(2000);
  }
  await page.screenshot({ path: join(into, "console-load.png") });

  await run("import os\nos.system('id')\n");
  await run("echo done; exit 3", "bash");
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto(`${url}/#/audit`);
  await page.reload();
  await page.getByText("whole").waitFor();
  await page.screenshot({ path: join(into, "console-audit.png") });
}
