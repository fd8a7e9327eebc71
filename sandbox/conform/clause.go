package conform

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/astrabox/astrabox/sandbox"
)

// Clause is one promise of the contract. H is what it is tried on: [Subject],
// [Box] or *[Stage].
type Clause[H any] struct {
	// ID is stable: lower-case words joined by dots, the area first
	// ("files.write.bits"). Reports, deviations and -run name it.
	ID string
	// Doc is the promise in one sentence.
	Doc string
	// Capability is the flag of sandbox.Capabilities that the promise belongs
	// to; empty: every provider keeps it.
	Capability string
	// Timeout is for the whole clause; zero: that of [Options].
	Timeout time.Duration
	// Check tries the promise. Nil: kept. A [*Failure] (see [Unmet]) says what
	// was expected and seen; [Skip] that it couldn't be tried here; any other
	// error is a failure too.
	Check func(ctx context.Context, h H) error
	// Refusal is tried instead where Capability isn't declared: that what the
	// flag would give is refused. It is set exactly where Capability is.
	Refusal func(ctx context.Context, h H) error
}

// Info is a clause without its functions, for lists.
type Info struct {
	ID         string `json:"id"`
	Doc        string `json:"doc"`
	Capability string `json:"capability"`
}

func (c Clause[H]) info() Info { return Info{ID: c.ID, Doc: c.Doc, Capability: c.Capability} }

func infos[H any](cs []Clause[H]) []Info {
	out := make([]Info, len(cs))
	for i, c := range cs {
		out[i] = c.info()
	}
	return out
}

// Clauses lists every clause of every table, in the order in which they run.
func Clauses() []Info {
	out := infos(StructuralContract())
	out = append(out, infos(LifecycleContract())...)
	out = append(out, infos(DataContract())...)
	return append(out, infos(ProcessesContract())...)
}

// Failure is a promise that wasn't kept.
type Failure struct {
	Expected string // what the contract says, for this very case
	Seen     string // what the provider did
}

func (f *Failure) Error() string {
	return "expected " + f.Expected + "; seen: " + f.Seen
}

// Unmet is the error of a clause whose promise wasn't kept. expected is a
// phrase; seen is a format with its arguments, which are shown as people write
// them: a mode as 0644, a nil error as "no error", times and sizes in units.
func Unmet(expected, seen string, args ...any) error {
	return &Failure{Expected: expected, Seen: say(seen, args...)}
}

// NoError is nil for a nil err, and otherwise the failure of doing ("creating a
// sandbox") with it. A failure or a skip that err already is stays as it is.
func NoError(doing string, err error) error {
	var f *Failure
	var s *skipped
	switch {
	case err == nil:
		return nil
	case errors.As(err, &f), errors.As(err, &s):
		return err
	}
	return Unmet(doing+" to succeed", "%v", err)
}

// Refused is nil when err is an [sandbox.Error] of that code, with a status of
// 4xx or 5xx; doing says what was asked for.
func Refused(doing string, err error, code sandbox.Code) error {
	want := doing + " to be refused with " + string(code)
	var e *sandbox.Error
	switch {
	case err == nil:
		return Unmet(want, "it succeeded")
	case !errors.As(err, &e):
		return Unmet(want, "an error without a code: %v", err)
	case e.Code != code:
		return Unmet(want, "%v", err)
	case e.Status < 400 || e.Status > 599:
		return Unmet(want, "the code, with the HTTP status %d", e.Status)
	}
	return nil
}

type skipped struct{ reason string }

func (s *skipped) Error() string { return "skipped: " + s.reason }

// Skip is what a clause returns when it can't be tried here; the reason is reported.
func Skip(reason string, args ...any) error { return &skipped{say(reason, args...)} }

// declares reports the flag in caps; ok is false for a flag that there isn't.
func declares(caps sandbox.Capabilities, flag string) (declared, ok bool) {
	for _, r := range sandbox.Rules() {
		if r.Flag == flag {
			return r.Declared(caps), true
		}
	}
	return false, false
}

// oneLine keeps reports readable, whatever a provider says: one line without
// control characters, at most 400 bytes.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 400 {
		s = strings.ToValidUTF8(s[:400], "") + " …"
	}
	return s
}
