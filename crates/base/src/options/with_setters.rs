//! Structs of options with a setter for each field, which `with_setters!` declares.

/// Declares a struct of options as it is written, with a setter of the same name for each field, so
/// that options can be written as a chain. The setter of an `Option<T>` takes a `T`. Fields after a
/// `;` have none.
///
/// ```
/// tload_base::with_setters! {
///     /// Options of a search.
///     #[derive(Default)]
///     pub struct SearchOptions {
///         /// Maximum number of results. Default: no limit.
///         pub limit: Option<usize>,
///         /// Includes hidden files. Default: no.
///         pub hidden: bool,
///     }
/// }
///
/// let options = SearchOptions::default().limit(3).hidden(true);
/// assert_eq!((options.limit, options.hidden), (Some(3), true));
/// ```
#[macro_export]
macro_rules! with_setters {
    (
        $(#[$attribute:meta])*
        pub struct $options:ident {
            $($(#[$about:meta])* pub $name:ident: $outer:ident $(<$inner:ty>)?,)*
            $(; $($others:tt)*)?
        }
    ) => {
        $(#[$attribute])*
        pub struct $options {
            $($(#[$about])* pub $name: $outer $(<$inner>)?,)*
            $($($others)*)?
        }

        /// Setters, for chains. A field that is not set keeps its default.
        impl $options {
            $($crate::with_setters!(setter $name, $outer $(<$inner>)?);)*
        }
    };
    // Without `Some`, which the setter of an optional field adds.
    (setter $name:ident, Option<$inner:ty>) => {
        $crate::with_setters!(setter $name, $inner, Some);
    };
    (setter $name:ident, $value:ty) => {
        $crate::with_setters!(setter $name, $value, ::std::convert::identity);
    };
    (setter $name:ident, $value:ty, $wrap:path) => {
        #[doc = concat!("Sets [`", stringify!($name), "`](Self#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $value) -> Self {
            self.$name = $wrap($name);
            self
        }
    };
}

pub use with_setters;
