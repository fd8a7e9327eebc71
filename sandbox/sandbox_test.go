package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
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
