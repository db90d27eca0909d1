//! What the handles of all layers with a fair gate can do to it.

/// The methods of a handle about tenants and waiting. The handle has the gate as its field `gate`.
macro_rules! tenant_verbs {
    () => {
        /// All tenants that are remembered, in no order, and the two shared ones first. It goes through all of
        /// them, so it is not for every request.
        pub fn tenants(&self) -> Vec<$crate::wfq::TenantSnapshot> {
            self.gate.tenants()
        }

        /// One tenant, if it is remembered.
        pub fn tenant(
            &self,
            tenant: impl Into<$crate::wfq::Tenant>,
        ) -> Option<$crate::wfq::TenantSnapshot> {
            self.gate.tenant(&tenant.into())
        }

        /// Changes a tenant's weight, whether or not it is known yet. What it was charged already stays. For weights by
        /// plan, or for more than a few tenants, see [`WfqConfig::weight_of`](crate::WfqConfig::weight_of).
        ///
        /// # Errors
        /// If the weight is not from 1 to 10 000, the name is empty or longer than 256 bytes, or 100 000 tenants have been
        /// given a weight by name; nothing changes.
        pub fn set_weight(&self, tenant: &str, weight: u32) -> Result<(), $crate::ConfigError> {
            self.gate.set_weight(tenant, weight)
        }

        /// Calls [`WfqConfig::weight_of`](crate::WfqConfig::weight_of) again for all tenants that are remembered, such as
        /// after customers have changed their plans. Does nothing if there is none.
        pub fn refresh_weights(&self) {
            self.gate.refresh_weights();
        }

        /// Changes the weight of all tenants that have none of their own. It goes through all of them.
        ///
        /// # Errors
        /// If the weight is not from 1 to 10 000; nothing changes.
        pub fn set_default_weight(&self, weight: u32) -> Result<(), $crate::ConfigError> {
            self.gate.set_default_weight(weight)
        }

        /// Changes how many requests may wait. Those that wait already may stay.
        pub fn set_max_waiting(&self, max_waiting: usize) {
            self.gate.bounds.set_max_waiting(max_waiting);
        }

        /// Changes how many requests of one tenant may wait. Those that wait already may stay.
        pub fn set_max_waiting_per_tenant(&self, max_waiting: usize) {
            self.gate.set_max_waiting_per_tenant(Some(max_waiting));
        }

        /// Changes how long requests may wait that begin to wait from now on; `None` is without a bound.
        pub fn set_max_wait(&self, max_wait: Option<std::time::Duration>) {
            self.gate.bounds.set_max_wait(max_wait);
        }

        /// Changes the share of the requests that are sent which each [`Priority`](crate::Priority) gets that has waiters.
        ///
        /// # Errors
        /// If it is not from 0 to 0.2; nothing changes.
        pub fn set_priority_floor(&self, share: f64) -> Result<(), $crate::ConfigError> {
            self.gate.set_priority_floor(share)
        }

        /// Changes how many requests a tenant may have in flight; `None` is without a bound. Nothing in flight is disturbed.
        /// What is in flight by then without a tenant may not be counted. It goes through all tenants.
        pub fn set_max_in_flight_per_tenant(&self, max: Option<std::num::NonZeroU32>) {
            self.gate.set_max_in_flight_per_tenant(max);
        }
    };
}

pub(crate) use tenant_verbs;
