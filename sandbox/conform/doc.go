// Package conform checks a sandbox provider against the contract of package
// sandbox, clause by clause.
//
// A [Clause] is one promise: an id, one sentence, the capability flag that it
// belongs to, and a function that tries it. There are four tables of clauses,
// told apart by what they need:
//
//   - [StructuralContract] needs a driver and its provider, and no sandbox ([Subject]).
//   - [LifecycleContract] makes and destroys sandboxes ([Live], [Stage]).
//   - [DataContract] and [ProcessesContract] need the faces of one sandbox ([Box]).
//
// A table becomes a list of [Case] values with [Structural], [Live.Cases] or
// [DataPlane]; [Check] runs them one after another and gives a [Report]. A flag
// that the provider declares means that its clauses run and must pass; for one
// that it doesn't declare the clause's Refusal is tried instead, and the result
// is not-declared. A [Failure] says what was expected and what was seen.
//
// The clauses call the provider itself and not what sandbox.Bind makes of it,
// whose guards would hide what they look for. A clause that can't be tried here
// is skipped and says why. One that a platform is known not to keep can be
// listed in [Options] as a deviation, with the reason; when it passes, that is
// a failure, so that the list doesn't outlive its reasons.
//
// The package doesn't import testing, so that a command line or a plugin host
// runs the same clauses as go test (package sandboxtest has the bindings).
//
// # What a bad provider can do
//
// Every clause runs in its own goroutine with a deadline. One that panics or
// never returns is a failed clause; the run goes on. What can't be survived is
// a panic in a goroutine that the provider started itself.
//
// # For authors of providers
//
// Begin with [Structural], which needs no backend; go on with [DataPlane] on
// the faces of one sandbox; then [Live], which makes and destroys some eighty.
// Everything that the suite makes carries the installation id [Installation],
// and is destroyed with proof after the clause that made it; what can't be is
// named and fails it. A sandbox that the provider lists as another
// installation's is left alone. docs/guide-add-a-provider.md builds a small
// provider and checks it.
//
// # For authors of clauses
//
// A clause takes its time from ctx, time.Now and timers only and leaves no
// goroutine behind when the provider is right, so that it also runs inside a
// testing/synctest bubble. It assumes no order among clauses. Everything it
// runs in the sandbox comes from package conform/script. It says what it
// expected and what it saw ([Unmet]), for somebody who knows the contract and
// not this package. It has a variant in package sandboxfake that it catches.
package conform
