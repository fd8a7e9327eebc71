package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
)

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "A0._-z": true, strings.Repeat("x", 253): true,
		"": false, "-a": false, ".a": false, "a/b": false, "a..b": false, "..": false, "a b": false, "a\n": false, "é": false,
		strings.Repeat("x", 254): false,
	} {
		if got := sandbox.ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v, want %v", id, got, want)
		}
	}
}

func FuzzValidID(f *testing.F) {
	f.Add("abc")
	f.Add("a..b")
	f.Fuzz(func(t *testing.T, id string) {
		if sandbox.ValidID(id) && (strings.ContainsAny(id, "/\\ \n\x00%?#") || strings.Contains(id, "..")) {
			t.Errorf("%q passes", id)
		}
	})
}

func TestErrors(t *testing.T) {
	cause := errors.New("connection refused")
	err := fmt.Errorf("start: %w", sandbox.Errorf(sandbox.CodeGone, "it went away: %w", cause))
	for name, ok := range map[string]bool{
		"gone":             errors.Is(err, sandbox.ErrGone),
		"cause":            errors.Is(err, cause),
		"code":             sandbox.CodeOf(err) == sandbox.CodeGone,
		"not not-found":    !errors.Is(err, sandbox.ErrNotFound),
		"501":              errors.Is(sandbox.Errorf(sandbox.CodePauseUnsupported, "no"), sandbox.ErrUnsupported),
		"fs.ErrNotExist":   errors.Is(&sandbox.PathError{Op: "stat", Path: "/x", Err: sandbox.ErrPathNotFound}, fs.ErrNotExist),
		"changed rejected": errors.Is(sandbox.ErrChanged, sandbox.ErrPathRejected),
	} {
		if !ok {
			t.Errorf("%s doesn't hold", name)
		}
	}
}

func goodSpec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "astrabox:host",
		ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
	}
}

func TestCreateSpecValidate(t *testing.T) {
	good := goodSpec()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		field string
		spoil func(*sandbox.CreateSpec)
	}{
		{"InstallationID", func(s *sandbox.CreateSpec) { s.InstallationID = "" }},
		{"OwnerID", func(s *sandbox.CreateSpec) { s.OwnerID = "" }},
		{"AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = "" }},
		{"AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = s.OwnerID }},
		{"Image", func(s *sandbox.CreateSpec) { s.Image = "  " }},
		{"Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{} }},
		{"Dir", func(s *sandbox.CreateSpec) { s.Dir = "workspace" }},
		{"ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = nil }},
		{"ResourceRequests", func(s *sandbox.CreateSpec) { s.ResourceRequests = map[string]string{} }},
		{"TTL", func(s *sandbox.CreateSpec) { s.TTL = -1 }},
		{"Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"A=B": "c"} }},
		{"Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeySessionID: "x"} }},
	}
	for _, tt := range tests {
		s := good
		tt.spoil(&s)
		err := s.Validate()
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.field) {
			t.Errorf("spoilt %s: %v", tt.field, err)
		}
	}
}

func TestClaim(t *testing.T) {
	mine := goodSpec().OwnershipMetadata()
	for _, tt := range []struct {
		metadata            map[string]string
		installation, owner string
		want                sandbox.Claim
	}{
		{mine, "i", "o", sandbox.ClaimMine},
		{mine, "i", "", sandbox.ClaimMine},
		{mine, "i", "other", sandbox.ClaimForeign},
		{mine, "j", "o", sandbox.ClaimForeign},
		{nil, "i", "o", sandbox.ClaimUnknown},
		{map[string]string{"x": "y"}, "i", "o", sandbox.ClaimUnknown},
		{map[string]string{sandbox.KeyInstallation: "i", sandbox.KeyManagedBy: "someone"}, "i", "", sandbox.ClaimForeign},
	} {
		if got := sandbox.ClaimOf(tt.metadata, tt.installation, tt.owner); got != tt.want {
			t.Errorf("ClaimOf(%v, %q, %q) = %v, want %v", tt.metadata, tt.installation, tt.owner, got, tt.want)
		}
	}
}

// full implements every optional interface.
type full struct {
	scripted
	caps sandbox.Capabilities
}

func (f *full) Capabilities() sandbox.Capabilities         { return f.caps }
func (*full) Pause(context.Context, string) (bool, error)  { return true, nil }
func (*full) Resume(context.Context, string) (bool, error) { return true, nil }
func (*full) DescribeSandbox(context.Context, string) (sandbox.Info, error) {
	return sandbox.Info{}, nil
}
func (*full) FindSandboxByAssignment(context.Context, string, string) (sandbox.Info, bool, error) {
	return sandbox.Info{}, false, nil
}
func (*full) ListSandboxes(context.Context, map[string]string, string) ([]sandbox.Info, string, error) {
	return nil, "", nil
}

// bare declares what it is told to and implements nothing optional.
type bare struct {
	scripted
	caps sandbox.Capabilities
}

func (b *bare) Capabilities() sandbox.Capabilities { return b.caps }

// Every flag has exactly one rule, and Bind refuses the flag without its operations.
func TestEveryFlagHasARule(t *testing.T) {
	rules := sandbox.Rules()
	typ := reflect.TypeFor[sandbox.Capabilities]()
	for i := range typ.NumField() {
		flag := typ.Field(i).Name
		var c sandbox.Capabilities
		reflect.ValueOf(&c).Elem().Field(i).SetBool(true)

		at := slices.IndexFunc(rules, func(r sandbox.Rule) bool { return r.Flag == flag })
		if at < 0 {
			t.Errorf("%s has no rule", flag)
			continue
		}
		r := rules[at]
		if !r.Declared(c) || r.Declared(sandbox.Capabilities{}) {
			t.Errorf("the rule of %s reads another flag", flag)
		}
		if r.Needs == "" || r.Doc == "" {
			t.Errorf("the rule of %s has no text", flag)
		}
		d := sandbox.Driver{Name: "scripted", SeamVersion: sandbox.SeamVersion, Declares: c}
		if _, err := sandbox.Bind(d, &full{caps: c}); err != nil {
			t.Errorf("%s with its operations: %v", flag, err)
		}
		if flag == "ProcessSessions" {
			continue // checked on the handle
		}
		if _, err := sandbox.Bind(d, &bare{caps: c}); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s without its operations: %v", flag, err)
		}
		if b, err := sandbox.Bind(d, &bare{caps: c}, flag); err != nil || r.Declared(b.Caps) {
			t.Errorf("%s masked: %v", flag, err)
		}
	}
	if len(rules) != typ.NumField() {
		t.Errorf("%d rules for %d flags", len(rules), typ.NumField())
	}
}

func TestUndeclaredIsNotUsed(t *testing.T) {
	b, err := sandbox.Bind(sandbox.Driver{Name: "scripted"}, &full{})
	if err != nil {
		t.Fatal(err)
	}
	if b.Pauser != nil || b.Finder != nil || b.Inventory != nil {
		t.Error("an operation whose flag is false was bound")
	}
}

func TestBindNamesEverythingAtOnce(t *testing.T) {
	d := sandbox.Driver{Name: "other", Declares: sandbox.Capabilities{}}
	_, err := sandbox.Bind(d, &bare{caps: sandbox.Capabilities{Pause: true, InventoryListing: true}})
	for _, want := range []string{`calls itself "scripted"`, "its driver", "Pause", "InventoryListing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v doesn't name %q", err, want)
		}
	}
	var none *bare
	for _, p := range []sandbox.Provider{nil, none} {
		if _, err := sandbox.Bind(d, p); err == nil {
			t.Errorf("Bind(%#v) passed", p)
		}
	}
}

func TestUnsupportedProcesses(t *testing.T) {
	p := sandbox.UnsupportedProcesses("plain")
	_, start := p.Start(t.Context(), sandbox.ProcessSpec{})
	_, status := p.Status(t.Context(), "x")
	_, attach := p.Attach(t.Context(), "x", sandbox.AttachOptions{})
	for _, err := range []error{start, status, attach, p.Delete(t.Context(), "x")} {
		if sandbox.CodeOf(err) != sandbox.CodeProcessUnsupported || !strings.Contains(err.Error(), "plain") {
			t.Errorf("%v", err)
		}
	}
}

func TestModeRefusesOtherBits(t *testing.T) {
	for m, ok := range map[fs.FileMode]bool{
		0: true, 0o644: true, 0o755 | fs.ModeSetuid: true, 0o777 | fs.ModeSticky: true,
		0o4755: false, fs.ModeDir | 0o755: false, fs.ModeSymlink: false,
	} {
		if err := (sandbox.Attr{Mode: &m}).CheckMode(); (err == nil) != ok {
			t.Errorf("mode %#o: %v", uint32(m), err)
		}
	}
}
