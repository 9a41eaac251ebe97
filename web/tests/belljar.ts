// What the tests have in common: a server for those of one file, and the page.
import { expect, type Page, test as base } from "@playwright/test";

import { type Belljar, serve, stop } from "./server";

interface Fixtures {
  /** The page, on which nothing may break the policy or fail in a script. */
  console: Page;
}

interface WorkerFixtures {
  config: string;
  belljar: Belljar;
}

export const test = base.extend<Fixtures, WorkerFixtures>({
  config: ["[audit]\nenabled = true\n", { scope: "worker", option: true }],
  belljar: [
    async ({ config }, use) => {
      const server = await serve(config);
      await use(server);
      await stop(server);
    },
    { scope: "worker" },
  ],
  console: async ({ page, belljar }, use) => {
    const complaints: string[] = [];
    const requests: string[] = [];
    page.on("pageerror", (error) => complaints.push(String(error)));
    page.on("console", (message) => {
      // Without a script: Chromium's own editing, when several lines of the editor are replaced by typing.
      const isOfBrowser = message.text().startsWith("Applying inline style") && !message.location().url.endsWith(".js");
      if (/Content.Security.Policy|TrustedHTML|Refused to/i.test(message.text()) && !isOfBrowser) complaints.push(message.text());
    });
    page.on("dialog", (dialog) => {
      complaints.push(`a dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on("request", (request) => requests.push(request.url()));
    await page.goto(belljar.url);
    await use(page);
    expect(complaints).toEqual([]);
    const elsewhere = requests.filter((url) => !url.startsWith(belljar.url) && !/^(data|blob):/.test(url));
    expect(elsewhere, "requests to other servers").toEqual([]);
  },
});

export { expect };

/** Puts a program into the editor, as somebody does who pastes it. */
export async function write(page: Page, code: string): Promise<void> {
  const editor = page.getByRole("textbox", { name: "Code" });
  await editor.click();
  await page.keyboard.press("Control+a");
  await editor.evaluate((place, text) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/plain", text);
    place.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true, composed: true }));
  }, code);
}

export async function choose(page: Page, language: string): Promise<void> {
  await page.getByLabel("Language").selectOption(language);
}

export function output(page: Page) {
  return page.getByRole("log", { name: "Output" });
}

export function result(page: Page) {
  return page.getByRole("region", { name: "Result" });
}
