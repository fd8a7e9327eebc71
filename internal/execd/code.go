package execd

import (
	"net/http"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The daemon has no interpreters: it says so where one is asked for, and runs
// what is meant for the shell.

// Languages of code that the shell runs.
const (
	languageCommand    = "command"
	languageBackground = "background-command"
)

func (s *Server) postCode(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Context struct {
			ID       string `json:"id"`
			Language string `json:"language"`
		} `json:"context"`
		Code string `json:"code"`
	}
	if !decode(w, r, &req) {
		return
	}
	language := req.Context.Language
	switch {
	case req.Code == "":
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "code is empty")
	case req.Context.ID != "":
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, noInterpreter(language)+": no context exists")
	case language == "", language == languageCommand, language == languageBackground:
		s.eventCommand(w, r, wire.CommandRequest{Command: req.Code, Background: language == languageBackground})
	default:
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, noInterpreter(language))
	}
}

func noInterpreter(language string) string {
	if language == "" {
		return "no interpreter configured"
	}
	return "no interpreter configured for language " + `"` + language + `"`
}

func (s *Server) postCodeContext(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Language string `json:"language"`
	}
	if decodeOptional(w, r, &req) {
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, noInterpreter(req.Language))
	}
}

func (s *Server) listCodeContexts(w http.ResponseWriter, _ *http.Request) {
	reply(w, http.StatusOK, []struct{}{})
}

// deleteCodeContexts has nothing to delete.
func (s *Server) deleteCodeContexts(w http.ResponseWriter, r *http.Request) {
	if r.URL.Query().Get("language") == "" {
		refuse(w, http.StatusBadRequest, wire.CodeMissingQuery, "language is missing")
	}
}

func (s *Server) noCodeContext(w http.ResponseWriter, _ *http.Request) {
	refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such context: "+noInterpreter(""))
}
