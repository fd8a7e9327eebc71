// Package sandbox is the contract between AstraBox and a sandbox platform.
//
// A [Provider] creates, reaches, renews, pauses and destroys sandboxes, and
// hands out a [Handle] to one sandbox's files, commands, long-lived processes
// and ports. AstraBox decides which sandbox a conversation uses and when; the
// provider does it and says truthfully what happened. Where it can't know, it
// says so: an error or "unknown" is never "no", and a control that can't be
// enforced is refused, never left out.
//
// # Writing a provider
//
// A provider is a Go module that imports this package and nothing else of
// AstraBox but package sandbox/execd, where its sandboxes run one. It needs:
//
//   - A type with the methods of [Provider]. Embed [Base] for what the backend
//     can't do. Read the comments of the methods: they say which error means
//     what, and what has to be cleaned up.
//   - A [Handle], whose Files, Commands and Processes are the platform's own or
//     the ready-made ones of package sandbox/execd. Without long-lived processes,
//     Processes is [UnsupportedProcesses].
//   - [Capabilities] for what else the backend can do, with the interfaces that
//     [Rules] names for each flag, and what it likes of [Optionals].
//   - A [Driver], given to [Register] in the package's init function.
//   - Tests: package sandbox/sandboxtest runs the clauses of the contract, and
//     astrabox provider verify NAME runs them against an installed provider.
//
// The example named provider is a whole one.
//
// # How AstraBox uses it
//
// [Bind] checks what the provider declares against what it implements, and
// resolves its optional interfaces once, into a [Bound] that also guards its
// edges. Nothing else asserts on a provider's type. [ConfirmDestroyed] alone
// makes a verdict on a destruction. [CheckEnvironment] refuses configuration
// that needs what a backend lacks, when it is saved.
//
// Errors are [*Error], with a stable code, and sentinels for errors.Is;
// [Portable] carries them to another process. Secrets are [Secret] and show in
// no text.
//
// The package imports the standard library only. All of its interfaces are
// safe for concurrent use unless a comment says otherwise; contexts bound the
// call that they are given to and are never kept.
package sandbox
