//! The system interface of a module: `wasi_snapshot_preview1`, all of it in memory except for the workspace, which is
//! only read. No call here reaches anything else of the host: no sockets, no processes, no writing to host files.

pub(crate) mod abi;
mod calls;
mod descriptors;
mod poll;

use wasmtime::{Caller, Extern, Linker};

use abi::{Fault, Memory};
pub(crate) use calls::cpu_time;
use descriptors::Descriptors;

use crate::fs::Files;
use crate::guest::Guest;

/// The name under which a module imports the interface.
const MODULE: &str = "wasi_snapshot_preview1";

/// What a program was given, and what it has open.
#[derive(Debug)]
pub(crate) struct System {
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) env: Vec<Vec<u8>>,
    pub(crate) files: Files,
    descriptors: Descriptors,
    began: std::time::Instant,
}

impl System {
    /// The state of a program that starts now.
    pub(crate) fn new(args: Vec<Vec<u8>>, env: Vec<Vec<u8>>, files: Files) -> System {
        System { args, env, files, descriptors: Descriptors::new(), began: std::time::Instant::now() }
    }
}

/// The program has ended itself.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the program exited with {0}")]
pub(crate) struct Exited(pub(crate) u32);

/// Declares the calls: each gets the module's memory and the guest, and returns an error number.
macro_rules! calls {
    ($linker:ident: $( $name:ident ( $( $arg:ident : $type:ty ),* ) )*) => {
        $(
            $linker.func_wrap(
                MODULE,
                stringify!($name),
                |mut caller: Caller<'_, Guest>, $( $arg: $type ),*| -> wasmtime::Result<u32> {
                    let Some(Extern::Memory(memory)) = caller.get_export("memory") else {
                        return Ok(abi::Errno::Fault.code());
                    };
                    let (bytes, guest) = memory.data_and_store_mut(&mut caller);
                    answer(calls::$name(&mut Memory(bytes), guest, $( $arg ),*))
                },
            )?;
        )*
    };
}

/// Everything that a module may import.
pub(crate) fn provide(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    calls! { linker:
        args_get(list: u32, text: u32)
        args_sizes_get(count: u32, size: u32)
        environ_get(list: u32, text: u32)
        environ_sizes_get(count: u32, size: u32)
        clock_res_get(clock: u32, out: u32)
        clock_time_get(clock: u32, precision: u64, out: u32)
        fd_advise(fd: u32, offset: u64, length: u64, advice: u32)
        fd_allocate(fd: u32, offset: u64, length: u64)
        fd_close(fd: u32)
        fd_datasync(fd: u32)
        fd_fdstat_get(fd: u32, out: u32)
        fd_fdstat_set_flags(fd: u32, flags: u32)
        fd_fdstat_set_rights(fd: u32, base: u64, inheriting: u64)
        fd_filestat_get(fd: u32, out: u32)
        fd_filestat_set_size(fd: u32, size: u64)
        fd_filestat_set_times(fd: u32, accessed: u64, modified: u64, flags: u32)
        fd_pread(fd: u32, pieces: u32, count: u32, offset: u64, out: u32)
        fd_prestat_get(fd: u32, out: u32)
        fd_prestat_dir_name(fd: u32, out: u32, length: u32)
        fd_pwrite(fd: u32, pieces: u32, count: u32, offset: u64, out: u32)
        fd_read(fd: u32, pieces: u32, count: u32, out: u32)
        fd_readdir(fd: u32, buffer: u32, length: u32, position: u64, out: u32)
        fd_renumber(from: u32, to: u32)
        fd_seek(fd: u32, offset: i64, whence: u32, out: u32)
        fd_sync(fd: u32)
        fd_tell(fd: u32, out: u32)
        fd_write(fd: u32, pieces: u32, count: u32, out: u32)
        path_create_directory(fd: u32, path: u32, length: u32)
        path_filestat_get(fd: u32, flags: u32, path: u32, length: u32, out: u32)
        path_filestat_set_times(
            fd: u32, flags: u32, path: u32, length: u32, accessed: u64, modified: u64, which: u32
        )
        path_link(from: u32, flags: u32, path: u32, length: u32, to: u32, new: u32, new_length: u32)
        path_open(
            fd: u32, look: u32, path: u32, length: u32, how: u32, base: u64, inheriting: u64, flags: u32, out: u32
        )
        path_readlink(fd: u32, path: u32, length: u32, buffer: u32, room: u32, out: u32)
        path_remove_directory(fd: u32, path: u32, length: u32)
        path_rename(from: u32, path: u32, length: u32, to: u32, new: u32, new_length: u32)
        path_symlink(target: u32, target_length: u32, fd: u32, path: u32, length: u32)
        path_unlink_file(fd: u32, path: u32, length: u32)
        poll_oneoff(subscriptions: u32, events: u32, count: u32, out: u32)
        proc_raise(signal: u32)
        random_get(buffer: u32, length: u32)
        sched_yield()
        sock_accept(fd: u32, flags: u32, out: u32)
        sock_recv(fd: u32, pieces: u32, count: u32, flags: u32, out: u32, out_flags: u32)
        sock_send(fd: u32, pieces: u32, count: u32, flags: u32, out: u32)
        sock_shutdown(fd: u32, how: u32)
    }
    // The only one that does not return.
    linker.func_wrap(MODULE, "proc_exit", |_: Caller<'_, Guest>, code: u32| -> wasmtime::Result<()> {
        answer(Err(Fault::Exit(code))).map(drop)
    })?;
    Ok(())
}

fn answer(done: Result<(), Fault>) -> wasmtime::Result<u32> {
    match done {
        Ok(()) => Ok(0),
        Err(Fault::Told(errno)) => Ok(errno.code()),
        Err(Fault::Stopped(stopped)) => Err(wasmtime::Error::new(stopped)),
        Err(Fault::Exit(code)) => Err(wasmtime::Error::new(Exited(code))),
    }
}
