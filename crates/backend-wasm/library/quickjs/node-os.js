export const EOL = "\n";
export const platform = () => "wasi";
export const arch = () => "wasm32";
export const hostname = () => "belljar";
export const tmpdir = () => "/tmp";
export const homedir = () => "/sandbox";
export const cpus = () => [{ model: "wasm", speed: 0 }];
export default { EOL, platform, arch, hostname, tmpdir, homedir, cpus };
