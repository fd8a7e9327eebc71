package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// Case is a clause tied to what it is tried on, ready to run.
type Case struct {
	Info
	timeout  time.Duration
	declared bool   // its capability, if any
	masked   bool   // the capability is declared, and taken as if it weren't
	left     string // what it needs and isn't there; empty: it can run
	check    func(context.Context) error
	refusal  func(context.Context) error
	after    func(context.Context) error // clean-up, also after a panic or an abandoned clause
	// stuck says what keeps the clause from being tried, and, when it failed,
	// what it keeps others from. Empty: nothing; nil: neither.
	stuck func() (away, keeps string)
}

// Options of a run. The zero value runs everything.
type Options struct {
	// Provider is the name put into the report.
	Provider string
	// Timeout is what a clause may take that has none of its own; zero: 30 s.
	Timeout time.Duration
	// Grace is how long a clause whose deadline has passed may take to return
	// before it is left behind; zero: 5 s.
	Grace time.Duration
	// Run leaves out the clauses whose id it doesn't match; nil: none.
	Run *regexp.Regexp
	// Deviations are the clauses known to fail, with the reason. One that
	// passes is a failure: the list must not outlive its reason. So is one that
	// names no clause of the run's tables.
	Deviations map[string]string
	// Secrets are texts that may not appear in a report; they are replaced.
	Secrets []string
	// Observe, if set, gets each result as it comes.
	Observe func(Result)
}

// Check runs the cases in order, one at a time, until ctx ends; what didn't
// run then is reported as such.
func Check(ctx context.Context, cases []Case, o Options) Report {
	rep := Report{Provider: o.Provider, Clauses: []Result{}}
	add := func(r Result) {
		rep.Clauses = append(rep.Clauses, r)
		rep.Summary.count(r.Status)
		if o.Observe != nil {
			o.Observe(r)
		}
	}
	for _, c := range cases {
		if o.Run == nil || o.Run.MatchString(c.ID) {
			add(c.Run(ctx, o))
		}
	}
	for _, r := range UnknownDeviations(cases, o) {
		add(r)
	}
	return rep
}

// UnknownDeviations gives a failed result for each of the options' deviations
// that names none of the cases.
func UnknownDeviations(cases []Case, o Options) (out []Result) {
	known := map[string]bool{}
	for _, c := range cases {
		known[c.ID] = true
	}
	for _, id := range sortedKeys(o.Deviations) {
		if !known[id] {
			out = append(out, Result{Info: Info{ID: id}, Status: Failed,
				Reason:   "the list of deviations names a clause that there isn't",
				Expected: "every listed deviation to be a clause", Seen: o.Deviations[id]})
		}
	}
	return out
}

// Run runs one case. It returns within the clause's timeout, the grace and the
// time of the clean-up (30 s at most, and its grace).
func (c Case) Run(ctx context.Context, o Options) (r Result) {
	start := time.Now()
	defer func() {
		r.Info = c.Info
		r.Ms = time.Since(start).Milliseconds()
	}()
	if ctx.Err() != nil {
		return Result{Status: NotRun, Reason: o.text(endOf(ctx))}
	}
	if c.left != "" {
		return Result{Status: NotRun, Reason: o.text(c.left)}
	}
	do, passed := c.check, Result{Status: Passed}
	if c.Capability != "" && !c.declared {
		passed = Result{Status: NotDeclared, Reason: c.absent() + ", and what it would give is refused"}
		if do = c.refusal; do == nil {
			return Result{Status: NotDeclared, Reason: c.absent()}
		}
	}
	if c.stuck != nil && passed.Status == Passed { // a refusal may need nothing of what isn't there
		if away, _ := c.stuck(); away != "" {
			return Result{Status: NotRun, Reason: o.text(away)}
		}
	}
	err := guard(ctx, firstSet(c.timeout, o.Timeout, 30*time.Second), firstSet(o.Grace, 5*time.Second), do)
	if c.after != nil {
		cleanup := guard(context.WithoutCancel(ctx), 30*time.Second, firstSet(o.Grace, 5*time.Second), c.after)
		if err == nil {
			err = cleanup
		} else if cleanup != nil {
			err = besides(err, cleanup)
		}
	}
	if err != nil && ctx.Err() != nil {
		return Result{Status: NotRun, Reason: o.text(endOf(ctx))}
	}
	return c.judge(err, passed, o)
}

// besides adds what went wrong with the clean-up to a clause's failure.
func besides(err, cleanup error) error {
	var f, more *Failure
	var s *skipped
	if errors.As(err, &s) {
		return cleanup
	}
	if !errors.As(err, &f) || !errors.As(cleanup, &more) {
		return errors.Join(err, cleanup)
	}
	return &Failure{Expected: f.Expected, Seen: f.Seen + "; afterwards " + more.Seen}
}

// endOf says why a run ended before its clauses did.
func endOf(ctx context.Context) string {
	switch err := context.Cause(ctx); {
	case errors.Is(err, context.Canceled):
		return "the run was given up"
	case errors.Is(err, context.DeadlineExceeded):
		return "the run's time was over"
	default:
		return "the run ended: " + err.Error()
	}
}

// absent says why the capability isn't there.
func (c Case) absent() string {
	if c.masked {
		return c.Capability + " is disabled here"
	}
	return c.Capability + " isn't declared"
}

// text is what a report may show of s: no secret, and one short line of it.
func (o Options) text(s string) string {
	for _, secret := range o.Secrets {
		if secret != "" {
			s = strings.ReplaceAll(s, secret, "[secret]")
		}
	}
	return oneLine(s)
}

// judge turns what a clause returned into its result.
func (c Case) judge(err error, passed Result, o Options) Result {
	deviation, listed := o.Deviations[c.ID]
	away, keeps := "", ""
	if c.stuck != nil {
		away, keeps = c.stuck()
	}
	var s *skipped
	switch {
	case away != "":
		return Result{Status: NotRun, Reason: o.text(away)}
	case errors.As(err, &s):
		return Result{Status: Skipped, Reason: o.text(s.reason)}
	case err == nil && listed && passed.Status == Passed:
		return Result{Status: Failed, Reason: "it is listed as a deviation and passes: take it off the list",
			Expected: "a deviation: " + o.text(deviation), Seen: "the promise is kept"}
	case err == nil:
		return passed
	}
	r := Result{Status: Failed, Reason: c.Doc}
	var f *Failure
	if errors.As(err, &f) {
		r.Expected, r.Seen = o.text(f.Expected), o.text(f.Seen)
	} else {
		r.Expected, r.Seen = o.text(c.Doc), o.text(err.Error())
	}
	if passed.Status == NotDeclared {
		r.Reason = c.absent() + ", so what it would give must be refused"
	}
	switch {
	case keeps != "":
		r.Reason = keeps
	case listed && passed.Status == Passed:
		r.Status, r.Reason = Deviation, o.text(deviation)
	}
	return r
}

// Safely calls f, which calls a provider, as a clause is called: a panic is an
// error, and so is not returning within timeout and five seconds. In the last
// case f's goroutine is left behind, named in the error.
func Safely(ctx context.Context, timeout time.Duration, f func(context.Context) error) error {
	return guard(ctx, timeout, 5*time.Second, f)
}

// guard calls f with a deadline and gives its error, that it panicked, or,
// when it doesn't return within grace after the deadline, where it hangs. In
// that last case its goroutine is left behind: nothing can end it.
func guard(ctx context.Context, timeout, grace time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ended := make(chan error, 1)
	id := make(chan string, 1)
	go func() {
		err := errors.New("it ended its goroutine (runtime.Goexit)")
		defer func() { ended <- err }()
		defer func() {
			if p := recover(); p != nil {
				err = Unmet("no panic", "a panic: %v, %s", p, panicPlace())
			}
		}()
		id <- ownGoroutine()
		err = f(ctx)
	}()
	select {
	case err := <-ended:
		return timedOut(ctx, timeout, err)
	case <-ctx.Done():
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case err := <-ended:
		return timedOut(ctx, timeout, err)
	case <-t.C:
		return Unmet(fmt.Sprintf("an end within %v, and a prompt one when its context ends", timeout),
			"it never returned; its goroutine is left behind in %s", placeOf(<-id))
	}
}

// timedOut says of an error that came when the clause's time was up, that it was.
func timedOut(ctx context.Context, timeout time.Duration, err error) error {
	if err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	var f *Failure
	if errors.As(err, &f) {
		return Unmet(f.Expected, "%s (the clause's %v were over)", f.Seen, timeout)
	}
	return fmt.Errorf("%w (the clause's %v were over)", err, timeout)
}

// ownGoroutine gives the head of the calling goroutine's stack, "goroutine 7 ".
func ownGoroutine() string {
	var buf [64]byte
	head, _, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte("["))
	return string(head)
}

// placeOf names the functions in which that goroutine stands, innermost first,
// without those of the runtime and of this file.
func placeOf(goroutine string) string {
	buf := make([]byte, 1<<20)
	buf = buf[:runtime.Stack(buf, true)]
	for _, g := range strings.Split(string(buf), "\n\n") {
		if !strings.HasPrefix(g, goroutine+"[") {
			continue
		}
		if calls := callsOf(g); len(calls) > 0 {
			return strings.TrimSpace(goroutine) + ": " + strings.Join(calls, " < ")
		}
	}
	return strings.TrimSpace(goroutine)
}

// panicPlace names where the panic that is being recovered came from.
func panicPlace() string {
	buf := make([]byte, 64<<10)
	g := string(buf[:runtime.Stack(buf, false)])
	if _, after, ok := strings.Cut(g, "\npanic("); ok {
		g = "goroutine\npanic(" + after
	}
	if calls := callsOf(g); len(calls) > 0 {
		return "in " + strings.Join(calls, " < ")
	}
	return "in an unknown place"
}

// callsOf picks at most four functions with their lines from a goroutine's
// trace, without ours that called them.
func callsOf(trace string) (calls []string) {
	fromUs := false
	lines := strings.Split(trace, "\n")
	for i := 1; i+1 < len(lines) && len(calls) < 4; i++ {
		fn, at := lines[i], lines[i+1]
		if strings.HasPrefix(fn, "\t") || strings.HasPrefix(fn, "created by") ||
			strings.HasPrefix(fn, "runtime.") || strings.HasPrefix(fn, "panic(") || strings.HasPrefix(fn, "runtime/") ||
			strings.HasPrefix(fn, "internal/") {
			continue
		}
		at = strings.TrimSpace(at)
		at, _, _ = strings.Cut(at, " +0x")
		if ours := strings.HasPrefix(fn, ourPath); strings.Contains(fn, "conform.guard") || ours && !fromUs && len(calls) > 0 {
			break
		} else if len(calls) == 0 {
			fromUs = ours
		}
		at = at[strings.LastIndexByte(at, '/')+1:]
		if p := strings.LastIndexByte(fn, '('); p > 0 {
			fn = fn[:p]
		}
		fn = fn[strings.LastIndexByte(fn, '/')+1:]
		calls = append(calls, fn+" ("+at+")")
	}
	return calls
}

// ourPath begins the names of this package's functions.
const ourPath = "github.com/astrabox/astrabox/sandbox/conform."

func firstSet(ds ...time.Duration) time.Duration {
	for _, d := range ds {
		if d > 0 {
			return d
		}
	}
	return 0
}
