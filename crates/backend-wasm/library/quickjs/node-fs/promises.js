import { promises } from "node:fs";

export const { readFile, writeFile, appendFile, readdir, mkdir, stat, unlink, rename, rm } = promises;
export default promises;
