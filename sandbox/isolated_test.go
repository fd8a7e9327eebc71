package sandbox_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestIsolatedSessionSpec(t *testing.T) {
	good := sandbox.IsolatedSessionSpec{Workspace: "/home/a b", Source: "/srv/$x", UID: 1000, GID: 1000, Writable: []string{"/var/cache"},
		Binds: []sandbox.IsolatedBind{{Source: "/opt"}, {Source: "/opt", Path: "/mnt/opt", ReadOnly: true}}, IdleTimeout: time.Minute}
	if err := good.Check(); err != nil {
		t.Errorf("a good one: %v", err)
	}
	for _, c := range []struct {
		field string
		spoil func(*sandbox.IsolatedSessionSpec)
	}{
		{"Workspace", func(s *sandbox.IsolatedSessionSpec) { s.Workspace = "" }},
		{"Workspace", func(s *sandbox.IsolatedSessionSpec) { s.Workspace = "home" }},
		{"Workspace", func(s *sandbox.IsolatedSessionSpec) { s.Workspace = "/" }},
		{"Workspace", func(s *sandbox.IsolatedSessionSpec) { s.Workspace = "/a\x00b" }},
		{"Source", func(s *sandbox.IsolatedSessionSpec) { s.Source = "/a/../b" }},
		{"Source", func(s *sandbox.IsolatedSessionSpec) { s.Source = "./b" }},
		{"Writable", func(s *sandbox.IsolatedSessionSpec) { s.Writable = []string{"/a", ""} }},
		{"Writable", func(s *sandbox.IsolatedSessionSpec) { s.Writable = make([]string, 65) }},
		{"Binds.Source", func(s *sandbox.IsolatedSessionSpec) { s.Binds[0].Source = "" }},
		{"Binds.Path", func(s *sandbox.IsolatedSessionSpec) { s.Binds[1].Path = "//" }},
		{"IdleTimeout", func(s *sandbox.IsolatedSessionSpec) { s.IdleTimeout = time.Millisecond }},
		{"IdleTimeout", func(s *sandbox.IsolatedSessionSpec) { s.IdleTimeout = -time.Second }},
	} {
		s := good
		s.Binds = append([]sandbox.IsolatedBind(nil), good.Binds...)
		c.spoil(&s)
		err := s.Check()
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%+v: %v, want a refusal that names %s", s, err, c.field)
		}
	}
}

func TestIsolatedErrors(t *testing.T) {
	err := sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "no session x")
	if !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) || err.Status != 409 || err.Retryable {
		t.Errorf("%+v", err)
	}
	if err := sandbox.Errorf(sandbox.CodeIsolationUnsupported, "no"); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("%+v", err)
	}
}
