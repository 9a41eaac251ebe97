#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| belljar_fuzz::packets(bytes));

/// Without a fuzzer: tries the files that are named, such as one that a fuzzer found.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|file| {
        belljar_fuzz::packets(&std::fs::read(file)?);
        Ok(())
    })
}
