//! `#[tool]`: an async function becomes a tool.
//!
//! Read in this order: [`tool`] is the entry point; `syntax` parses the attribute, `attribute` defines its keys, `kind`
//! their values, `function` reads the signature; this file generates the code. Everything behind the entry point works
//! on `proc_macro2` streams and is tested as a plain function.

mod attribute;
mod function;
mod kind;
mod syntax;
#[cfg(test)]
mod tests;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::parse::Parser as _;
use syn::spanned::Spanned as _;
use syn::{Error, ItemFn, Type, parse_quote};

use attribute::Attribute;
use function::{Argument, Arguments, Function, Slot};
use syntax::{Json, Value, settings};

/// Makes a tool of an async function.
///
/// The function stays as it is and can be called and tested as before. Beside it stands a unit struct with
/// the function's name in camel case (`read_file` → `ReadFile`) that implements `toolwright::core::Tool`:
///
/// ```ignore
/// /// Adds two numbers.
/// #[tool(namespace = "math", effects(read_only, open_world = false))]
/// async fn add(
///     /// First number.
///     a: i64,
///     /// Second number.
///     b: i64,
/// ) -> Result<String, ToolError> {
///     Ok((a + b).to_string())
/// }
///
/// let provider = StaticProvider::new("math", ProviderKind::Native, vec![Arc::new(Add)])?;
/// ```
///
/// # The function
/// - The doc comment up to its first heading is the description. There must be one.
/// - Each parameter is an argument; its doc comment is the argument's description, `#[serde(…)]` and
///   `#[schemars(…)]` on it mean what they mean on a field, and an `Option` may be left out.
/// - A single parameter of a type of yours, without a doc comment, is the struct of all arguments. It derives
///   `Deserialize` and `JsonSchema`, and its fields are the arguments.
/// - A parameter `&ToolContext` (or `ToolContext`), anywhere, gets the context of the call.
/// - It returns `Result<T, E>` or `T`: a `String` is the text of the result, a `ToolOutput` goes as it is, any
///   other `T: Serialize + JsonSchema` is the structured result, and its schema is the output schema. `E` is
///   `ToolError` or converts into it.
///
/// # The attribute
/// Identity: `id = "namespace:name@1.0.0"`, or `namespace` with, if they differ from the function's name and
/// 1.0.0, `name` and `version`. All else is optional and named like the field of `ToolDefinition` that it sets:
///
/// | key | like this |
/// |---|---|
/// | `title`, `description`, `contribution`, `documentation`, `queue`, `body_argument`, `approval`, `threat_level` | `title = "Add"`; also a constant or `include_str!("manual.md")` |
/// | `tags`, `aliases`, `allowed_roles` | `tags = ["math", "exact"]` |
/// | `examples` | `examples = [{"a": 1, "b": 2}]`: objects, as JSON |
/// | `effects` | `effects(read_only, open_world = false)`; what is not named is as bad as it can be, but what only reads neither destroys nor adds up |
/// | `safe`, `strict`, `manual_required` | `strict`, `safe = false` |
/// | `mode` | `direct`, `background` or `stateful` |
/// | `concurrency` | `safe` or `exclusive` |
/// | `on_output_mismatch` | `warn` or `error` |
/// | `timeout`, `idle_timeout`, `auto_background_after`, `cache_ttl` | `timeout = "30s"`; units `ms s m h d w` |
/// | `retries` | `retries = 2` |
/// | `max_output` | `max_output = 4096`, in bytes |
/// | `sandbox_profile` | `sandbox_profile = "read-only"`: `pure`, `read-only`, `workspace`, `network` or `full` |
/// | `recommended_threshold` | `recommended_threshold = 95`, up to 100 |
/// | `model_preference` | `model_preference(preferred_model = "openai/gpt-5", fallback_models = [], max_tokens = 500, temperature = 0.2)` |
/// | `capabilities`, `meta`, `provider_schema`, `output_schema` | `meta = {"owner": "core"}`: an object, as JSON |
/// | `cost_hint` | `cost_hint = "two cents"`, or any JSON |
///
/// And for the code itself: `type_name = AddTool` names the struct, `scope = function` gives `Tool::scope` (a
/// `fn(&Value, &Session) -> CallScope`), `crate = path` says where `toolwright` (or `toolwright_core`) is.
#[proc_macro_attribute]
pub fn tool(attribute: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    expand(attribute.into(), item.into()).into()
}

/// Expands the macro. On errors the function is kept, so that the compiler reports no follow-up errors.
fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let item: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let message = format!("`#[tool]` goes on an `async fn` ({error})");
            return Error::new(error.span(), message).to_compile_error();
        }
    };
    let mut errors = Vec::new();
    let written = settings.parse2(attribute).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    let readable = errors.is_empty();
    let function = Function::read(item, &mut errors);
    let name = &function.item.sig.ident;
    let mut settings_errors = Vec::new();
    let settings = Attribute::read(written, name, &mut settings_errors);
    if readable {
        errors.append(&mut settings_errors);
        check(&function, &settings, &mut errors);
    }
    let item = &function.item;
    if errors.is_empty() {
        let tool = implementation(&function, &settings);
        quote!(#item #tool)
    } else {
        let errors = errors.iter().map(Error::to_compile_error);
        quote!(#item #(#errors)*)
    }
}

/// Checks that function and attribute agree.
fn check(function: &Function, settings: &Attribute, errors: &mut Vec<Error>) {
    if function.description.is_empty() && !settings.has("description") {
        let name = &function.item.sig.ident;
        let message = format!(
            "`{name}` has no doc comment: it becomes the description by which a model chooses the tool; write `/// …` \
             above the function"
        );
        errors.push(Error::new(name.span(), message));
    }
    let Arguments::Each(arguments) = &function.arguments else { return };
    // A flattened or skipped parameter makes other names legal.
    if arguments.iter().any(|argument| argument.name.is_none()) {
        return;
    }
    let name = |argument: &Argument| argument.name.clone().unwrap_or_default();
    let known = || arguments.iter().map(|argument| format!("`{}`", name(argument))).collect::<Vec<_>>().join(", ");
    if let Some(body) = &settings.body_argument
        && arguments.iter().all(|argument| name(argument) != body.value())
    {
        errors.push(Error::new(body.span(), format!("there is no argument `{}`, only {}", body.value(), known())));
    }
    for example in &settings.examples {
        let Value::Object(members) = &example.value else { continue };
        for argument in arguments.iter().filter(|argument| argument.required) {
            if members.iter().all(|(key, _)| key.value() != name(argument)) {
                let message = format!("the example lacks `{}`, which is required", name(argument));
                errors.push(Error::new(example.span, message));
            }
        }
        for (key, value) in members {
            match arguments.iter().find(|argument| name(argument) == key.value()) {
                None if arguments.is_empty() => {
                    errors.push(Error::new(key.span(), "the tool takes no arguments"));
                }
                None => {
                    let message = format!("there is no argument `{}`, only {}", key.value(), known());
                    errors.push(Error::new(key.span(), message));
                }
                Some(argument) => errors.extend(type_mismatch(&argument.ty, value)),
            }
        }
    }
}

/// Reports an example's value that does not fit a simple type.
fn type_mismatch(ty: &Type, value: &Json) -> Option<Error> {
    let Type::Path(path) = ty else { return None };
    let name = path.path.get_ident()?.to_string();
    let (fits, expected) = match (name.as_str(), &value.value) {
        ("String", found) => (matches!(found, Value::Text(_)), "a text"),
        ("bool", found) => (matches!(found, Value::Bool(_)), "true or false"),
        ("f32" | "f64", found) => (matches!(found, Value::Integer(_) | Value::Float(_)), "a number"),
        ("i8" | "i16" | "i32" | "i64" | "isize" | "u8" | "u16" | "u32" | "u64" | "usize", found) => {
            (matches!(found, Value::Integer(_)), "a whole number")
        }
        _ => return None,
    };
    (!fits)
        .then(|| Error::new(value.span, format!("the argument is {expected} (`{name}`), and this is {}", value.kind())))
}

fn implementation(function: &Function, settings: &Attribute) -> TokenStream {
    let (support, type_name) = (&settings.support, &settings.type_name);
    let (visibility, name) = (&function.item.vis, &function.item.sig.ident);
    let conditions: Vec<_> = function.item.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg")).collect();
    let (arguments_struct, arguments_type) = arguments(function, support);
    let definition = definition(function, settings, &arguments_type);
    let call = call(function, settings);
    let scope = settings.scope.as_ref().map(|scope| {
        quote! {
            fn scope(&self, arguments: &#support::Value, session: &#support::Session) -> #support::CallScope {
                #scope(arguments, session)
            }
        }
    });
    let about = format!("The tool `{}`, made of [`{name}`].", settings.id);
    quote! {
        #(#conditions)*
        #[doc = #about]
        #[derive(Debug, Clone, Copy, Default)]
        #visibility struct #type_name;

        #(#conditions)*
        const _: () = {
            #arguments_struct

            #[automatically_derived]
            #[#support::async_trait]
            impl #support::Tool for #type_name {
                fn definition(&self) -> #support::ToolDefinition {
                    static DEFINITION: #support::OnceLock<#support::ToolDefinition> = #support::OnceLock::new();
                    DEFINITION.get_or_init(|| { #definition }).clone()
                }

                async fn run(
                    &self,
                    __arguments: #support::Value,
                    __context: &#support::ToolContext,
                ) -> ::std::result::Result<#support::ToolOutput, #support::ToolError> {
                    let __arguments = <#arguments_type as #support::ToolArguments>::read(__arguments)?;
                    #call
                }

                #scope
            }
        };
    }
}

/// Returns the struct of the arguments, generated if needed, and its type.
fn arguments(function: &Function, support: &syn::Path) -> (TokenStream, Type) {
    match &function.arguments {
        Arguments::Struct(ty) => (TokenStream::new(), (**ty).clone()),
        Arguments::Each(arguments) => {
            let (serde, schemars) = (quote!(#support::serde).to_string(), quote!(#support::schemars).to_string());
            let checks = arguments.iter().map(|argument| is_argument(&argument.ty, support));
            let fields =
                arguments.iter().map(|Argument { ident, ty, attributes, .. }| quote!(#(#attributes)* #ident: #ty));
            let flattened = arguments.iter().any(|argument| argument.name.is_none());
            let closed = (!flattened).then(|| quote!(#[serde(deny_unknown_fields)]));
            let code = quote! {
                #(#checks)*

                #[derive(#support::serde::Deserialize, #support::schemars::JsonSchema)]
                #[serde(crate = #serde)]
                #[schemars(crate = #schemars)]
                #closed
                struct __Arguments { #(#fields),* }
            };
            (code, parse_quote!(__Arguments))
        }
    }
}

/// Generates code that makes the compiler report missing traits at the type's position.
fn is_argument(ty: &Type, support: &syn::Path) -> TokenStream {
    quote_spanned!(ty.span()=> const _: fn() = #support::is_argument::<#ty>;)
}

fn definition(function: &Function, settings: &Attribute, arguments_type: &Type) -> TokenStream {
    let (support, id, description) = (&settings.support, &settings.id, &function.description);
    let output_schema = function.success.as_ref().map(|success| {
        let asked = quote_spanned!(success.span()=> <#success as #support::ToolReturn>::output_schema());
        quote!(definition.output_schema = #asked;)
    });
    let fields = settings.fields.iter().map(|(field, value)| quote!(definition.#field = #value;));
    quote! {
        let parameters = <#arguments_type as #support::ToolArguments>::schema();
        let mut definition =
            #support::ToolDefinition::new(#support::id(#id), #description, ::std::option::Option::Some(parameters));
        #output_schema
        #(#fields)*
        definition
    }
}

/// Generates the call of the function, and the conversion of its result.
fn call(function: &Function, settings: &Attribute) -> TokenStream {
    let (support, name) = (&settings.support, &function.item.sig.ident);
    let given = function.slots.iter().map(|slot| match slot {
        Slot::Context => quote!(__context),
        Slot::OwnContext => quote!(::std::clone::Clone::clone(__context)),
        Slot::Argument(ident) => quote!(__arguments.#ident),
        Slot::All => quote!(__arguments),
    });
    let result = quote!(#name(#(#given),*).await);
    let success = match &function.failure {
        Some(failure) => {
            let convert = quote_spanned!(failure.span()=> #support::failure(error));
            quote! {
                match #result {
                    ::std::result::Result::Ok(success) => success,
                    ::std::result::Result::Err(error) => return ::std::result::Result::Err(#convert),
                }
            }
        }
        None => result,
    };
    let ty: Type = function.success.clone().unwrap_or_else(|| parse_quote!(()));
    quote_spanned!(ty.span()=> <#ty as #support::ToolReturn>::into_output(#success))
}
