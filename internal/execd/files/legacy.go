package files

import "net/http"

func (s *service) legacy() map[string]func(http.ResponseWriter, *http.Request) error { return nil }

func refuseLegacy(w http.ResponseWriter, err error) { refuse(w, err) }
