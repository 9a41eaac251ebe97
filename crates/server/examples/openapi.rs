//! Prints the OpenAPI document as the code describes it; `make openapi` writes it to a file.

#![allow(clippy::print_stdout, reason = "this is what it is for")]

fn main() {
    print!("{}", belljar_server::http::described());
}
