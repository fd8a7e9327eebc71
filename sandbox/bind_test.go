package sandbox_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
)

func driverOf(c sandbox.Capabilities) sandbox.Driver {
	return sandbox.Driver{Name: "scripted", SeamVersion: sandbox.SeamVersion, Declares: c}
}

// everything declares all flags.
func everything() (c sandbox.Capabilities) {
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		if v.Field(i).Kind() == reflect.Bool {
			v.Field(i).SetBool(true)
		}
	}
	return c
}

// with declares a flag and what it requires.
func with(t *testing.T, flag string) (c sandbox.Capabilities) {
	t.Helper()
	for flag != "" {
		f := reflect.ValueOf(&c).Elem().FieldByName(flag)
		if !f.IsValid() || f.Kind() != reflect.Bool {
			t.Fatalf("%s is no flag of Capabilities", flag)
		}
		f.SetBool(true)
		r, _ := sandbox.RuleOf(flag)
		flag = r.Requires
	}
	return c
}

// operations gives the fields of Bound that hold an optional interface.
func operations() (names []string) {
	typ := reflect.TypeFor[sandbox.Bound]()
	for i := range typ.NumField() {
		if f := typ.Field(i); f.IsExported() && !f.Anonymous && f.Type.Kind() == reflect.Interface {
			names = append(names, f.Name)
		}
	}
	return names
}

// Flags, rules and the fields of Bound are tied to each other: nothing can be
// added to one without the others.
func TestEveryFlagHasARule(t *testing.T) {
	typ := reflect.TypeFor[sandbox.Capabilities]()
	var flags []string
	for i := range typ.NumField() {
		switch f := typ.Field(i); {
		case f.Type.Kind() == reflect.Bool:
			flags = append(flags, f.Name)
		case f.Name != "PermissionLevels":
			t.Errorf("Capabilities.%s is neither a flag nor the list of levels", f.Name)
		}
	}
	var ruled, fields []string
	for _, r := range sandbox.Rules() {
		ruled = append(ruled, r.Flag)
		if r.Field != "" {
			fields = append(fields, r.Field)
		}
	}
	for _, o := range sandbox.Optionals() {
		fields = append(fields, o.Field)
	}
	slices.Sort(flags)
	slices.Sort(ruled)
	if diff := cmp.Diff(flags, ruled); diff != "" {
		t.Errorf("flags and rules differ:\n%s", diff)
	}
	ops := operations()
	slices.Sort(ops)
	slices.Sort(fields)
	if diff := cmp.Diff(ops, fields); diff != "" {
		t.Errorf("the fields of Bound and those of the tables differ:\n%s", diff)
	}
}

func TestRules(t *testing.T) {
	for _, r := range sandbox.Rules() {
		t.Run(r.Flag, func(t *testing.T) {
			c := with(t, r.Flag)
			if !r.Declared(c) || r.Declared(sandbox.Capabilities{}) {
				t.Error("it reads another flag")
			}
			for _, text := range []string{r.Doc, r.Without} {
				if !strings.HasSuffix(text, ".") {
					t.Errorf("%q is not a sentence", text)
				}
			}
			if e := r.Refusal("acme"); e.Status != 501 || !strings.Contains(e.Message, "acme") || !strings.Contains(e.Message, r.Flag) {
				t.Errorf("its refusal is %v (%d)", e, e.Status)
			}
			if r.Needs == "" {
				t.Error("it says nothing of what is needed")
			}
			b, err := sandbox.Bind(driverOf(c), &full{bare: bare{caps: c}})
			if err != nil {
				t.Fatalf("with its operations: %v", err)
			}
			// What is declared is bound, behind a guard; what isn't is not.
			for _, field := range operations() {
				v := reflect.ValueOf(b).Elem().FieldByName(field)
				at := slices.IndexFunc(sandbox.Rules(), func(o sandbox.Rule) bool { return o.Field == field })
				if at < 0 {
					continue
				}
				if declared := sandbox.Rules()[at].Declared(c); declared == v.IsNil() {
					t.Errorf("%s: declared %v, bound %v", field, declared, !v.IsNil())
				}
				if !v.IsNil() && v.Elem().Type() == reflect.TypeFor[*full]() {
					t.Errorf("%s is bound without a guard", field)
				}
			}
			if !r.Implemented(&full{}) {
				t.Error("Implemented says no of a provider that has everything")
			}
			if r.Field == "" {
				return // checked on the handle
			}
			if r.Implemented(&bare{}) || r.Implemented(nil) {
				t.Error("Implemented says yes of a provider that has nothing")
			}
			if _, err := sandbox.Bind(driverOf(c), &bare{caps: c}); err == nil || !strings.Contains(err.Error(), r.Flag) {
				t.Errorf("without its operations: %v", err)
			}
		})
	}
}

func TestRequires(t *testing.T) {
	c := sandbox.Capabilities{IsolatedSessionRecovery: true}
	if _, err := sandbox.Bind(driverOf(c), &full{bare: bare{caps: c}}); err == nil || !strings.Contains(err.Error(), "IsolatedSessionRecovery without IsolatedSessions") {
		t.Errorf("%v", err)
	}
	c.IsolatedSessions = true
	b, err := sandbox.Bind(driverOf(c), &full{bare: bare{caps: c}}, "IsolatedSessions")
	if err != nil {
		t.Fatal(err)
	}
	if b.Caps.IsolatedSessionRecovery || b.Recovery != nil || b.Isolated != nil {
		t.Error("a flag whose requirement is masked is still there")
	}
}

func TestMask(t *testing.T) {
	all := everything()
	for _, name := range sandbox.Maskable() {
		b, err := sandbox.Bind(driverOf(all), &full{bare: bare{caps: all}}, name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, f := range b.Features() {
			want := f.Name != name && (name != "IsolatedSessions" || f.Name != "IsolatedSessionRecovery")
			if f.On != want || f.Masked == want || f.Doc == "" {
				t.Errorf("with %s masked: %+v", name, f)
			}
		}
	}
	if _, err := sandbox.Bind(driverOf(all), &full{bare: bare{caps: all}}, "Fly", "Closer"); err == nil || !strings.Contains(err.Error(), `"Fly"`) || !strings.Contains(err.Error(), `"Closer"`) {
		t.Errorf("masks that there aren't: %v", err)
	}
	// A mask doesn't demand an implementation: it is how a broken one is left out.
	c := sandbox.Capabilities{Pause: true}
	if b, err := sandbox.Bind(driverOf(c), &bare{caps: c}, "Pause"); err != nil || b.Caps.Pause {
		t.Errorf("%v", err)
	}
}

func TestUndeclaredIsNotUsed(t *testing.T) {
	b, err := sandbox.Bind(driverOf(sandbox.Capabilities{}), &full{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range sandbox.Rules() {
		if r.Field != "" && !reflect.ValueOf(b).Elem().FieldByName(r.Field).IsNil() {
			t.Errorf("%s was bound although its flag is false", r.Field)
		}
	}
	for _, o := range sandbox.Optionals() {
		if reflect.ValueOf(b).Elem().FieldByName(o.Field).IsNil() {
			t.Errorf("%s needs no flag and wasn't bound", o.Field)
		}
	}
}

func TestLevels(t *testing.T) {
	type levels = []sandbox.PermissionLevel
	for _, tt := range []struct {
		name   string
		levels levels
		p      func(sandbox.Capabilities) sandbox.Provider
		wrong  string
	}{
		{"unset", nil, nil, ""},
		{"default", levels{"default"}, nil, ""},
		{"advanced with its attestation", levels{"default", "advanced"}, nil, ""},
		{"empty", levels{}, nil, "empty"},
		{"unknown", levels{"default", "root"}, nil, `"root"`},
		{"blank", levels{""}, nil, `""`},
		{"twice", levels{"default", "default"}, nil, "twice"},
		{"privileged", levels{"default", "privileged"}, nil, "privileged"},
		{"advanced without", levels{"advanced"}, func(c sandbox.Capabilities) sandbox.Provider { return &bare{caps: c} }, "ReadIsolationCapability"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := sandbox.Capabilities{PermissionLevels: tt.levels}
			var p sandbox.Provider = &full{bare: bare{caps: c}}
			if tt.p != nil {
				p = tt.p(c)
			}
			_, err := sandbox.Bind(driverOf(c), p)
			if (err == nil) != (tt.wrong == "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%v", err)
			}
		})
	}
	c := sandbox.Capabilities{PermissionLevels: levels{"default", "advanced"}}
	for l, ok := range map[sandbox.PermissionLevel]bool{"": true, "default": true, "advanced": true, "privileged": false, "root": false} {
		if err := c.CheckLevel("acme", l); (err == nil) != ok || err != nil && (sandbox.CodeOf(err) != sandbox.CodeLevelUnsupported || !strings.Contains(err.Error(), "acme")) {
			t.Errorf("level %q: %v", l, err)
		}
	}
	if !c.Equal(sandbox.Capabilities{PermissionLevels: levels{"advanced", "default"}}) || c.Equal(sandbox.Capabilities{}) ||
		!(sandbox.Capabilities{}).Equal(sandbox.Capabilities{PermissionLevels: levels{"default"}}) {
		t.Error("Equal compares levels wrongly")
	}
}

// named panics where a test wants it.
type named struct {
	full
	name func() string
	able func() sandbox.Capabilities
}

func (n *named) Name() string                       { return n.name() }
func (n *named) Capabilities() sandbox.Capabilities { return n.able() }

type embedsProvider struct{ sandbox.Provider }

type embedsPauser struct {
	bare
	sandbox.Pauser
}

type deep struct{ *embedsPauser }

func (deep) Name() string { return "scripted" }

type mapProvider map[string]int

func (mapProvider) Name() string                       { return "scripted" }
func (mapProvider) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }
func (mapProvider) Create(context.Context, sandbox.CreateSpec) (sandbox.Handle, error) {
	return nil, errors.ErrUnsupported
}

func (mapProvider) Connect(context.Context, string) (sandbox.Handle, error) {
	return nil, errors.ErrUnsupported
}
func (mapProvider) Kill(context.Context, string) (bool, error) { return false, nil }

type mapProviderWithBase struct {
	sandbox.Base
	mapProvider
}

func TestBindRefuses(t *testing.T) {
	pause := sandbox.Capabilities{Pause: true}
	for _, tt := range []struct {
		name  string
		d     sandbox.Driver
		p     sandbox.Provider
		wrong []string
	}{
		{"nil", driverOf(sandbox.Capabilities{}), nil, []string{"no provider"}},
		{"a nil pointer", driverOf(sandbox.Capabilities{}), (*bare)(nil), []string{"no provider"}},
		{"everything at once", sandbox.Driver{Name: "other"}, &bare{caps: sandbox.Capabilities{Pause: true, InventoryListing: true, PermissionLevels: []sandbox.PermissionLevel{}}},
			[]string{`calls itself "scripted"`, "its driver nothing", "Pause without", "InventoryListing without", "levels is empty"}},
		{"a panicking name", driverOf(sandbox.Capabilities{}), &named{name: func() string { panic("boom") }, able: everything}, []string{"Name: ", "panicked: boom", "it declares"}},
		{"panicking capabilities", driverOf(sandbox.Capabilities{}), &named{name: func() string { return "x" }, able: func() sandbox.Capabilities { panic("boom") }},
			[]string{`itself "x"`, "Capabilities: ", "panicked"}},
		{"an embedded nil provider", driverOf(sandbox.Capabilities{}), &embedsProvider{}, []string{"panicked"}},
		{"an embedded nil operation", driverOf(pause), &embedsPauser{bare: bare{caps: pause}}, []string{"embeds sandbox.Pauser, which is nil"}},
		{"one deeper", driverOf(pause), deep{&embedsPauser{bare: bare{caps: pause}}}, []string{"embeds sandbox.Pauser, which is nil"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := sandbox.Bind(tt.d, tt.p)
			if b != nil || sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("%v, %v", b, err)
			}
			for _, w := range append(tt.wrong, tt.d.Name) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v doesn't say %q", err, w)
				}
			}
		})
	}
	if _, err := sandbox.Bind(driverOf(sandbox.Capabilities{}), &mapProviderWithBase{}); err != nil {
		t.Errorf("a provider with a nil map inside: %v", err)
	}
}

// Resolve gives the provider's own operations, unguarded, for what is declared.
func TestResolve(t *testing.T) {
	p := &full{}
	b := sandbox.Resolve(p, sandbox.Capabilities{Pause: true})
	if b.Pauser != sandbox.Pauser(p) || b.Inventory != nil || b.Metrics != sandbox.Metrics(p) || b.Name() != "scripted" {
		t.Errorf("%+v", b)
	}
	if b := sandbox.Resolve(nil, everything()); b.Pauser != nil || b.Provider != nil {
		t.Errorf("%+v", b)
	}
}

func TestParseMask(t *testing.T) {
	got, err := sandbox.ParseMask(" pause, ,CORRELATEDCREATE,Metrics")
	if diff := cmp.Diff([]string{"Pause", "CorrelatedCreate", "Metrics"}, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
	for _, list := range []string{"Fly", "Pause,Closer", "Validator"} {
		if got, err := sandbox.ParseMask(list); got != nil || sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "ProcessSessions") {
			t.Errorf("%q: %v %v", list, got, err)
		}
	}
	if got, err := sandbox.ParseMask(" , "); got != nil || err != nil {
		t.Errorf("blank: %v %v", got, err)
	}
}

// Every row of the rules has its clauses in the conformance suites, and every
// clause belongs to a row or to everybody.
func TestRulesHaveClauses(t *testing.T) {
	seen := map[string]int{}
	for _, c := range conform.Clauses() {
		if _, ok := sandbox.RuleOf(c.Capability); c.Capability != "" && !ok {
			t.Errorf("the clause %s belongs to the flag %s, which there isn't", c.ID, c.Capability)
		}
		seen[c.Capability]++
	}
	for _, r := range sandbox.Rules() {
		if seen[r.Flag] == 0 {
			t.Errorf("%s has no clause", r.Flag)
		}
	}
}

// What a backend lacks is refused with 501, naming the backend.
func TestLackingOperationsNameTheBackend(t *testing.T) {
	b, err := sandbox.Bind(driverOf(sandbox.Capabilities{}), &bare{})
	if err != nil {
		t.Fatal(err)
	}
	_, renew := b.Renew(t.Context(), "a", 1)
	_, expires := b.ExpiresAt(t.Context(), "a")
	for _, err := range []error{renew, expires} {
		if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), "scripted") {
			t.Errorf("%v", err)
		}
	}
}

func TestOpen(t *testing.T) {
	p := &full{}
	d := driverOf(sandbox.Capabilities{})
	d.New = func(context.Context, sandbox.Host) (sandbox.Provider, error) { return p, nil }
	if b, err := d.Open(t.Context(), sandbox.Host{}, "Metrics"); err != nil || b.Metrics != nil || b.Diagnoser == nil || p.closed != 0 {
		t.Errorf("%v, closed %d times", err, p.closed)
	}
	p.caps.Pause = true // not what the driver says
	if _, err := d.Open(t.Context(), sandbox.Host{}); sandbox.CodeOf(err) != sandbox.CodeInvalid || p.closed != 1 {
		t.Errorf("%v, closed %d times", err, p.closed)
	}
	for name, f := range map[string]func(context.Context, sandbox.Host) (sandbox.Provider, error){
		"nil":             nil,
		"no provider":     func(context.Context, sandbox.Host) (sandbox.Provider, error) { return nil, nil },
		"a nil pointer":   func(context.Context, sandbox.Host) (sandbox.Provider, error) { return (*full)(nil), nil },
		"a panic":         func(context.Context, sandbox.Host) (sandbox.Provider, error) { panic("boom") },
		"an error":        func(context.Context, sandbox.Host) (sandbox.Provider, error) { return nil, errors.New("no key") },
		"embedding a nil": func(context.Context, sandbox.Host) (sandbox.Provider, error) { return &embedsProvider{}, nil },
	} {
		d.New = f
		if b, err := d.Open(t.Context(), sandbox.Host{}); b != nil || sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "scripted") {
			t.Errorf("%s: %v, %v", name, b, err)
		}
	}
}
