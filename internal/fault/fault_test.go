package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

func TestCatalogueIsSound(t *testing.T) {
	form := regexp.MustCompile(`^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$`)
	seen := map[Code]bool{}
	for _, e := range Catalogue() {
		switch {
		case seen[e.Code]:
			t.Errorf("%s is there twice", e.Code)
		case e.Code != Timeout && e.Code != Cancelled && !form.MatchString(string(e.Code)):
			t.Errorf("%s is not UPPER_SNAKE", e.Code)
		case e.Status < 400 || e.Status > 599:
			t.Errorf("%s has status %d", e.Code, e.Status)
		case !strings.HasSuffix(e.Public, ".") || e.Public[:1] != strings.ToUpper(e.Public[:1]):
			t.Errorf("%s: %q is not a sentence", e.Code, e.Public)
		case Lookup(e.Code) != e:
			t.Errorf("Lookup(%s) gives something else", e.Code)
		}
		seen[e.Code] = true
	}
}

// Every code of the seam is in the catalogue, so that it has a sentence.
func TestCatalogueHasTheSeam(t *testing.T) {
	text, err := os.ReadFile("../../sandbox/errors.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`Code = "([A-Z_]+)"`).FindAllStringSubmatch(string(text), -1)
	if len(codes) < 20 {
		t.Fatalf("only %d codes were found", len(codes))
	}
	for _, m := range codes {
		if _, ok := byCode[Code(m[1])]; !ok {
			t.Errorf("%s has no entry", m[1])
		}
	}
}

func TestFrom(t *testing.T) {
	secret := errors.New("dial tcp 10.0.0.7:44772: token=hunter2")
	path := func(err error) error { return &sandbox.PathError{Op: "open", Path: "/workspace/a", Err: err} }
	rejected := func(cause error) error { return path(fmt.Errorf("%w: %w", sandbox.ErrPathRejected, cause)) }
	tests := []struct {
		name   string
		err    error
		code   Code
		status int
		retry  bool
	}{
		{"unknown", secret, Internal, 500, false},
		{"own", New(TurnNotRunning, ""), TurnNotRunning, 409, false},
		{"own, wrapped", fmt.Errorf("store: %w", New(ConversationNotFound, "")), ConversationNotFound, 404, false},
		{"own around a cause", Wrap(SandboxStartFailed, secret, ""), SandboxStartFailed, 502, true},
		{"seam", sandbox.Errorf(sandbox.CodeCapacity, "full"), "SANDBOX_CAPACITY_UNAVAILABLE", 503, true},
		{"seam, a provider's own code", &sandbox.Error{Code: "ACME_BUSY", Status: 503, Retryable: true, Message: "busy"}, "ACME_BUSY", 503, true},
		{"seam without status", &sandbox.Error{Code: sandbox.CodeGone}, "SANDBOX_GONE", 404, false},
		{"cancelled", fmt.Errorf("x: %w", context.Canceled), Cancelled, StatusClientClosed, true},
		{"deadline", context.DeadlineExceeded, Timeout, 504, true},
		{"unreachable", fmt.Errorf("%w: %w", sandbox.ErrUnreachable, secret), SandboxUnreachable, 502, true},
		{"process", sandbox.ErrProcessNotFound, TerminalNotFound, 404, false},
		{"held", sandbox.ErrProcessHeld, TerminalHeld, 409, false},
		{"gap", &sandbox.ReplayGapError{From: 1, Oldest: 5}, TerminalReplayGap, 409, false},
		{"no file", path(sandbox.ErrPathNotFound), FileNotFound, 404, false},
		{"file changed", path(sandbox.ErrChanged), FileChanged, 412, false},
		{"file exists", rejected(fs.ErrExist), FileExists, 409, false},
		{"not empty is not exists", rejected(syscall.ENOTEMPTY), NotEmpty, 409, false},
		{"limit", path(fmt.Errorf("%w: too many", sandbox.ErrLimit)), FileLimit, 413, false},
		{"disk full", rejected(syscall.ENOSPC), NoSpace, 507, false},
		{"escapes", rejected(syscall.EPERM), PathEscapes, 403, false},
		{"not permitted", rejected(syscall.EACCES), PermissionDenied, 403, false},
		{"a FIFO", rejected(syscall.ENODEV), NotRegular, 400, false},
		{"a broken disk", rejected(syscall.EIO), FileFailed, 502, false},
		{"rejected", rejected(secret), FileRejected, 400, false},
		{"file unreachable", path(fmt.Errorf("%w: %w", sandbox.ErrUnreachable, secret)), SandboxUnreachable, 502, true},
		{"file cancelled", path(context.Canceled), Cancelled, StatusClientClosed, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := From(tt.err)
			got := []any{e.Code, e.Status, e.Retryable}
			if diff := cmp.Diff([]any{tt.code, tt.status, tt.retry}, got); diff != "" {
				t.Error(diff)
			}
			if e.Public == "" || strings.Contains(e.Public, "hunter2") {
				t.Errorf("public text %q", e.Public)
			}
			if !errors.Is(e, tt.err) {
				t.Error("the cause is lost for logs")
			}
		})
	}
	if From(nil) != nil {
		t.Error("nil is an error")
	}
}

func TestTextsAreApart(t *testing.T) {
	e := Wrap(SandboxStartFailed, errors.New("runc: exit status 1"), "The sandbox of %q could not be started.", "x")
	if got, want := e.Error(), `SANDBOX_START_FAILED: The sandbox of "x" could not be started.: runc: exit status 1`; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if strings.Contains(e.Public, "runc") {
		t.Errorf("Public = %q", e.Public)
	}
	if !errors.Is(fmt.Errorf("a: %w", e), New(SandboxStartFailed, "")) || !Is(e, SandboxStartFailed) || Is(e, Internal) {
		t.Error("errors.Is by code")
	}
	if l := Lookup("NO_SUCH_CODE"); l.Status != http.StatusInternalServerError {
		t.Errorf("an unknown code has status %d", l.Status)
	}
}

func TestPathTextIsOneLine(t *testing.T) {
	e := From(&sandbox.PathError{Op: "stat", Path: "/workspace/\n" + strings.Repeat("x", 5000), Err: sandbox.ErrPathNotFound})
	if strings.ContainsRune(e.Public, '\n') || len(e.Public) > 400 {
		t.Errorf("Public = %q", e.Public)
	}
}
