//! Stands in for the macros of `utoipa` where nothing is described.
//!
//! The OpenAPI document is made from the code, committed, and compared with the code by a test. So the program only has to carry
//! the file. `utoipa`, its macros and what they add to `wire` and `server` take long to compile: they exist with the feature
//! `openapi` alone, which every test has. Without it, these macros take the attributes and add nothing.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;

/// Takes the attributes of `utoipa::ToSchema`.
#[proc_macro_derive(ToSchema, attributes(schema))]
pub fn to_schema(_: TokenStream) -> TokenStream {
    TokenStream::new()
}

/// Takes the description of a path, as `utoipa::path` does, and leaves the function as it is.
#[proc_macro_attribute]
pub fn path(_: TokenStream, handler: TokenStream) -> TokenStream {
    handler
}
