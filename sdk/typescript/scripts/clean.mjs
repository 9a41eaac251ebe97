// Removes what earlier builds left, so that a package never carries a module whose source is gone.
import { rmSync } from "node:fs";

for (const folder of ["dist", "build/test"]) rmSync(new URL(`../${folder}`, import.meta.url), { recursive: true, force: true });
