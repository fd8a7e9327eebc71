package execd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// A session whose processes the daemon couldn't end isn't closed, though it isn't
// to be found any more.
func TestCloseOfWhatSurvives(t *testing.T) {
	say := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(wire.HeaderServer, wire.ServerName+"/1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		closed bool
	}{
		"survives": {say(500, `{"code":"RUNTIME_ERROR","message":"2 processes survive"}`), false},
		"ended":    {say(200, ""), true},
		"unknown":  {say(404, `{"code":"SESSION_NOT_FOUND","message":"no such session"}`), true},
	} {
		t.Run(name, func(t *testing.T) {
			i := execd.Isolated(func(context.Context, string) (*execd.Conn, error) {
				return serve(t, map[string]http.HandlerFunc{
					"GET /version": say(200, `{"features":["`+wire.FeatureIsolated+`"]}`),
					"DELETE " + wire.PathIsolated + "/session/s1": c.answer,
					"GET " + wire.PathIsolated + "/session/s1":    say(404, `{"code":"SESSION_NOT_FOUND","message":"no such session"}`),
				}), nil
			})
			err := i.CloseIsolatedSession(t.Context(), "s", "s1")
			if (err == nil) != c.closed || !c.closed && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A session has ended with its sandbox, also when that goes while one closes it.
func TestCloseOfASandboxThatGoes(t *testing.T) {
	gone := sandbox.Errorf(sandbox.CodeNotFound, "no such sandbox")
	for name, c := range map[string]struct {
		first, then error // of reaching the sandbox
		closed      bool
	}{
		"gone":        {gone, errors.New("asked again"), true},
		"paused":      {sandbox.Errorf(sandbox.CodeNotRunning, "it is paused"), errors.New("asked again"), true},
		"going":       {nil, gone, true},
		"pausing":     {nil, sandbox.Errorf(sandbox.CodeNotRunning, "it is paused"), true},
		"only silent": {nil, nil, false},
		"unknown":     {nil, sandbox.Errorf(sandbox.CodeUnavailable, "no answer"), false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			i := execd.Isolated(func(context.Context, string) (*execd.Conn, error) {
				asked++
				away := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
				return serve(t, map[string]http.HandlerFunc{"GET /version": away}), []error{c.first, c.then}[min(asked, 2)-1]
			})
			if err := i.CloseIsolatedSession(t.Context(), "s", "s1"); (err == nil) != c.closed {
				t.Errorf("error %v", err)
			}
		})
	}
}
