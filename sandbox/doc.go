// Package sandbox is the contract between AstraBox and a sandbox platform.
//
// A [Provider] creates, reaches, renews, pauses and destroys sandboxes, and
// hands out a [Handle] to one sandbox's files, commands, long-lived processes
// and ports. AstraBox decides which sandbox a conversation uses and when; the
// provider does it and says truthfully what happened.
//
// A provider registers a [Driver] when its package is imported. [Bind] checks
// what the provider declares against what it implements (see [Rules]) and
// resolves its optional interfaces once, into a [Bound]. Nothing else asserts
// on a provider's type.
//
// The package imports the standard library only. All of its interfaces are
// safe for concurrent use unless a comment says otherwise; contexts bound the
// call that they are given to and are never kept.
package sandbox
