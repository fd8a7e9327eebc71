package store

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
)

func scanEnvironment(r scanner) (e model.Environment, err error) {
	var spec string
	if err := r.Scan(&spec); err != nil {
		return e, err
	}
	return e, json.Unmarshal([]byte(spec), &e)
}

// Environments lists the Environments by name.
func (s *Store) Environments(ctx context.Context) ([]model.Environment, error) {
	return all(ctx, s, scanEnvironment, `SELECT spec FROM environments ORDER BY name`)
}

// Environment reads one by name; ENVIRONMENT_NOT_FOUND for an unknown one.
func (s *Store) Environment(ctx context.Context, name string) (model.Environment, error) {
	e, err := one(ctx, s, scanEnvironment, `SELECT spec FROM environments WHERE name = $1`, name)
	if errors.Is(err, ErrNotFound) {
		err = fault.New(fault.EnvironmentNotFound, "")
	}
	return e, err
}

// SeedEnvironment stores an Environment unless one of its name exists.
func (t *Tx) SeedEnvironment(e model.Environment) error {
	e.CreatedAt = t.now
	spec, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = t.exec(`INSERT INTO environments (id, name, spec, created_at) VALUES ($1, $2, $3, $4) ON CONFLICT (name) DO NOTHING`,
		e.ID, e.Name, string(spec), ms(t.now))
	return err
}

func scanAgent(r scanner) (a model.Agent, err error) {
	var created int64
	err = r.Scan(&a.ID, &a.Name, &a.Environment, &a.Description, &created)
	a.CreatedAt = model.Time(created)
	return a, err
}

// Agents lists the Agents by name.
func (s *Store) Agents(ctx context.Context) ([]model.Agent, error) {
	return all(ctx, s, scanAgent, `SELECT id, name, environment, description, created_at FROM agents ORDER BY name`)
}

// Agent reads one by name or id; AGENT_NOT_FOUND for an unknown one.
func (s *Store) Agent(ctx context.Context, nameOrID string) (model.Agent, error) {
	a, err := one(ctx, s, scanAgent, `SELECT id, name, environment, description, created_at FROM agents WHERE name = $1 OR id = $1`, nameOrID)
	if errors.Is(err, ErrNotFound) {
		err = fault.New(fault.AgentNotFound, "")
	}
	return a, err
}

// SeedAgent stores an Agent unless one of its name exists.
func (t *Tx) SeedAgent(a model.Agent) error {
	_, err := t.exec(`INSERT INTO agents (id, name, environment, description, created_at) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO NOTHING`,
		a.ID, a.Name, a.Environment, a.Description, ms(t.now))
	return err
}
