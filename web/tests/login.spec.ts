import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

import { violations } from "./axe";
import { expect, output, test, write } from "./belljar";

function newKey(name: string): { key: string; stanza: string } {
  const text = execFileSync(process.env["BELLJAR"]!, ["key", "new", "--name", name], { encoding: "utf8" });
  return { key: text.split("\n")[0]!, stanza: text.slice(text.indexOf("[[keys]]")) };
}

const reader = newKey("reader");
const other = newKey("other");

test.use({ config: `[audit]\nenabled = true\n${reader.stanza}audit = true\n${other.stanza}` });

test("a key opens the console, and the browser does not keep it", async ({ console: page, context }) => {
  await expect(page.getByRole("heading", { name: "Belljar" })).toBeVisible();
  await page.getByLabel("Key", { exact: true }).fill("bj_wrong");
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("alert")).toContainText("not known");
  await page.getByLabel("Key", { exact: true }).fill(reader.key);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("button", { name: "Log out reader" })).toBeVisible();

  const [cookie, ...more] = await context.cookies();
  expect(more).toEqual([]);
  expect(cookie).toMatchObject({ name: "belljar_session", httpOnly: true, sameSite: "Strict" });
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));
  expect(kept + JSON.stringify(cookie)).not.toContain(reader.key);

  await write(page, "print('allowed')\n");
  await page.getByRole("button", { name: "Run" }).click();
  await expect(output(page)).toHaveText("allowed\n");
  await page.reload();
  await expect(page.getByRole("button", { name: "Log out reader" })).toBeVisible();

  await page.getByRole("button", { name: "Log out reader" }).click();
  await expect(page.getByLabel("Key", { exact: true })).toBeVisible();
  expect(await context.cookies()).toEqual([]);
});

test("a session ends for the browser that has an old cookie", async ({ console: page, context, belljar }) => {
  await page.getByLabel("Key", { exact: true }).fill(other.key);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Log out other" })).toBeVisible();
  const cookies = await context.cookies();
  await page.getByRole("button", { name: "Log out other" }).click();
  await expect(page.getByLabel("Key", { exact: true })).toBeVisible();
  await context.addCookies(cookies);
  expect((await page.request.get(`${belljar.url}/v1/runs`)).status()).toBe(401);
});

test("the audit log is offered to a key that may read it", async ({ console: page }) => {
  for (const [{ key }, offered] of [[other, 0], [reader, 1]] as const) {
    await page.getByLabel("Key", { exact: true }).fill(key);
    await page.keyboard.press("Enter");
    await expect(page.getByRole("link", { name: "Playground" })).toBeVisible();
    await expect(page.getByRole("link", { name: "Audit log" })).toHaveCount(offered);
    await page.getByRole("button", { name: "Log out" }).click();
  }
});

test("a page of another site cannot use the session", async ({ console: page, context, belljar }) => {
  await page.getByLabel("Key", { exact: true }).fill(other.key);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Log out other" })).toBeVisible();
  // The control: the same request from the console's own page.
  const request = { method: "POST", headers: { "content-type": "application/json" }, body: '{"language":"sh","code":"id"}' };
  const own = await page.evaluate(async (init) => (await fetch("/v1/runs", init)).status, request);
  expect(own).toBe(200);
  // A server on another port of the same host is the same site to a browser: it gets the cookie, and the server has to refuse.
  const foreign = await context.newPage();
  const neighbour = createServer((_, answer) => answer.setHeader("content-type", "text/html").end("<p>evil")).listen(0, "127.0.0.1");
  await once(neighbour, "listening");
  await foreign.goto(`http://127.0.0.1:${(neighbour.address() as AddressInfo).port}/`);
  const seen: number[] = [];
  foreign.on("response", (response) => seen.push(response.status()));
  await foreign.evaluate(async ([url, body]) => {
    const options = { credentials: "include", mode: "no-cors" } as const;
    await fetch(`${url}/v1/runs`, { ...options, method: "POST", body });
    await fetch(`${url}/v1/runs`, options);
    await fetch(`${url}/console/session`, { ...options, method: "POST", body });
  }, [belljar.url, request.body] as const);
  await expect.poll(() => seen).toEqual([403, 403, 403]);
  neighbour.close();
  await expect(page.getByRole("button", { name: "Log out other" })).toBeVisible();
});

test("a session ends when its key is removed", async ({ console: page, belljar, config }) => {
  await page.getByLabel("Key", { exact: true }).fill(other.key);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("button", { name: "Log out other" })).toBeVisible();
  belljar.reconfigure(config.replace(other.stanza, ""));
  await page.evaluate(() => (location.hash = "#/runs"));
  await expect(page.getByLabel("Key", { exact: true })).toBeVisible();
  belljar.reconfigure(config);
});

for (const colours of ["light", "dark"] as const) {
  test(`axe finds nothing on the page to log in, in ${colours}`, async ({ console: page }) => {
    await page.emulateMedia({ colorScheme: colours, reducedMotion: "reduce" });
    await expect(page.getByLabel("Key", { exact: true })).toBeVisible();
    expect(await violations(page)).toEqual([]);
    await page.getByLabel("Key", { exact: true }).fill("bj_wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await expect(page.getByRole("alert")).toBeVisible();
    expect(await violations(page), "after a key that is not known").toEqual([]);
  });
}
